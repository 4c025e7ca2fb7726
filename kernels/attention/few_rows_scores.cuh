#pragma once
// Scores of keys (KeyScores) that attention of few rows leaves, from the products that it computes
// anyway: the largest over the rows of a working warp by shuffles, over the warps that share a unit
// in shared memory, and over tiles of a pair, which other blocks may have, by a separate kernel.
#include "kernels/attention/few_rows_worker.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mbarrier.cuh"

namespace tandem {
namespace cuda {

/// Two numbers in one register, the first in the lower half: rounded to the nearest f16; those
/// beyond its range become infinite.
__device__ inline uint32_t pack_f16(float lower, float upper) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(upper), "f"(lower));
  return packed;
}

/// The larger of each two; of a NaN and a number the number.
__device__ inline uint32_t max_f16(uint32_t a, uint32_t b) {
  uint32_t larger;
  asm("max.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}

}  // namespace cuda

/// The number subtracted from the scores of a tile's query, negated; all of them become -inf where
/// there is no such query.
__device__ inline float score_off(const AttentionParams& p, const Chunk& k, int query,
                                  bool exists) {
  const int group = p.n_heads / p.n_kv_heads;
  if (!exists) return -INFINITY;
  return -p.scores
              .lse[table_row(p, k.seq) * p.scores.lse_stride + k.kv_head * group + query % group];
}

/// Where the scores of a chunk's tile go.
__device__ inline f16* scores_of(const FewRowsCall& call, const Chunk& k) {
  const TileScores& to = call.scores;
  const int64_t row = to.by_sequence ? k.seq : table_row(call.params, k.seq);
  return to.at + row * to.row_stride + k.kv_head * to.head_stride + k.tile * to.tile_stride;
}

namespace mma_detail {

/// The largest of each column of a warp's keys over its rows. Lane 4 g + t brings pairs 4 i + t of
/// row g, and gets pair 4 (g n / 8) + t of all rows.
template <int n>
__device__ uint32_t largest_of_rows(uint32_t (&x)[n]) {
  const unsigned lane = threadIdx.x % cuda::kWarp;
#pragma unroll
  for (int step = cuda::kWarp / 2, left = n; step >= 4; step /= 2) {
    if (left == 1) {
      x[0] = cuda::max_f16(x[0], __shfl_xor_sync(cuda::kAllLanes, x[0], step));
      continue;
    }
    left /= 2;
    const bool upper = (lane & static_cast<unsigned>(step)) != 0;
#pragma unroll
    for (int i = 0; i < left; ++i) {
      const uint32_t keep = upper ? x[left + i] : x[i], give = upper ? x[i] : x[left + i];
      x[i] = cuda::max_f16(keep, __shfl_xor_sync(cuda::kAllLanes, give, step));
    }
  }
  return x[0];
}

/// A call that wants no scores.
template <class Shape>
class NoScores {
 public:
  struct Shared {};
  static constexpr int kSharedBytes = 0;
  __device__ static void prepare(Shared&) {}
  __device__ NoScores(const FewRowsCall&, Shared&, int) {}
  __device__ void load(const Chunk&, int) {}
  __device__ void begin(const Chunk&) {}
  __device__ void take(const float (&)[Shape::kKeys / 8][4], int) {}
  __device__ void finish(int, int, int, int, int) {}
};

/// One that does, as a working warp sees it. Little of it is in registers, of which the products
/// leave few.
template <class Shape>
class Scores {
  static constexpr int kTiles = Shape::kQueryTiles, kPairs = Shape::kKeys / 2;
  static constexpr int kSharers = 4 * cuda::kWarp / kPairs;  // lanes that hold the same four pairs

 public:
  /// Maxima that the warps of a unit report to the first of them, by the unit's stage.
  struct Shared {
    cuda::Barrier reported[Shape::kMaxStages];
    uint32_t at[Shape::kMaxStages][kTiles][kPairs];
    f16* to[Shape::kParts];  // where the chunk's scores go
  };
  static constexpr int kSharedBytes = static_cast<int>(sizeof(Shared));

  /// By one thread, ahead of all else.
  __device__ static void prepare(Shared& shared) {
    if constexpr (kTiles > 1)
      for (cuda::Barrier& reported : shared.reported) reported.init(kTiles - 1);
  }
  __device__ Scores(const FewRowsCall& call, Shared& shared, int warp)
      : call_(call), shared_(shared), warp_(warp) {}

  /// Other queries.
  __device__ void load(const Chunk& k, int n_queries) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = tile() * 16 + half * 8 + lane() / 4;
      off_[half] = score_off(call_.params, k, k.tile * Shape::kQueries + query, query < n_queries);
    }
  }
  __device__ void begin(const Chunk& k) {
    if (tile() > 0) return;
    if (lane() == 0) shared_.to[warp_ / kTiles] = scores_of(call_, k);
    __syncwarp();
  }

  /// The products of a unit's keys, in the place `stage`.
  __device__ void take(const float (&s)[Shape::kKeys / 8][4], int stage) {
    const float scale = call_.params.scale;
    uint32_t x[Shape::kKeys / 8];
#pragma unroll
    for (int i = 0; i < Shape::kKeys / 8; ++i) {
      float most[2];
#pragma unroll
      for (int e = 0; e < 2; ++e)
        most[e] = fmaxf(fmaf(s[i][e], scale, off_[0]), fmaf(s[i][2 + e], scale, off_[1]));
      x[i] = cuda::pack_f16(most[0], most[1]);
    }
    const uint32_t top = largest_of_rows(x);
    if (writes()) shared_.at[stage][tile()][pair()] = top;
    report(stage);
  }

  /// Once per unit, after its products were taken if the warp has queries: the unit begins at slot
  /// `first`; keys from `committed` on have no scores.
  __device__ void finish(int stage, int parity, int first, int committed, int n_queries) {
    const int n_tiles = (n_queries + 15) / 16;
    if (tile() >= n_tiles) report(stage);
    if (tile() > 0) return;
    if constexpr (kTiles > 1) shared_.reported[stage].wait(parity);
    if (first >= committed || !writes()) return;
    uint32_t top = shared_.at[stage][0][pair()];
    for (int other = 1; other < n_tiles; ++other)
      top = cuda::max_f16(top, shared_.at[stage][other][pair()]);
    reinterpret_cast<uint32_t*>(shared_.to[warp_ / kTiles] + first)[pair()] = top;
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x % cuda::kWarp); }
  /// The pair of keys that this lane holds; with fewer pairs than lanes, others hold it too.
  __device__ static int pair() { return lane() / kSharers * 4 + lane() % 4; }
  __device__ static bool writes() { return lane() % kSharers < 4; }
  __device__ int tile() const { return warp_ % kTiles; }
  /// The first warp of the unit may read what this one wrote.
  __device__ void report(int stage) {
    if constexpr (kTiles > 1) {
      if (tile() == 0) return;
      __syncwarp();
      if (lane() == 0) shared_.reported[stage].arrive();
    }
  }

  const FewRowsCall& call_;
  Shared& shared_;
  int warp_;
  float off_[2];  // of the queries lane / 4 and 8 further
};

}  // namespace mma_detail
}  // namespace tandem
