#pragma once
// A working warp of few_rows_mma.cuh: 16 queries, and keys and values of units in shared memory.
#include "base/log2.h"
#include "kernels/attention/few_rows_state.cuh"
#include "kernels/attention/visibility.cuh"
#include "kernels/cuda/mma_bf16.cuh"
#include "kernels/cuda/number.cuh"

namespace tandem {

template <int kDim_, int kQueryTiles_>
struct MmaShape {
  static constexpr int kDim = kDim_, kQueryTiles = kQueryTiles_;
  static constexpr int kQueries = 16 * kQueryTiles;
  // Queries and sums of 256 columns take the registers of twice as many warps.
  static constexpr int kMostWarps = kDim == 256 ? 4 : 8;
  // Warps that take turns on the units.
  static constexpr int kParts = kMostWarps / kQueryTiles < 4 ? kMostWarps / kQueryTiles : 4;
  static constexpr int kWarps = kQueryTiles * kParts;
  static constexpr int kWorkers = kWarps * cuda::kWarp;
  static constexpr int kKeys = 64 * 64 / kDim;        // of a unit
  static constexpr int kUnits = kPageTokens / kKeys;  // of a page
  static constexpr int kHalves = kDim / 64;           // columns come by 64: rows of 128 bytes
  static constexpr int kHalfBytes = kKeys * 128;
  static constexpr int kUnitBytes = kHalves * kHalfBytes;  // of K, and of V
  // A stage belongs to one part, which thus sees all its phases: stages are a multiple of parts.
  static constexpr int kMaxStages = 12;
  static constexpr int kQueryBytes = 0;  // shared: queries lie in registers
};

namespace mma_detail {

/// Which keys of a unit its rows see.
enum class Seen { all, by_rule, few };

/// The state of a working warp's 16 queries, whichever instructions multiply.
template <class Shape>
class WorkerState {
 protected:
  static constexpr int kDim = Shape::kDim, kQueryTiles = Shape::kQueryTiles;
  static constexpr int kKeyTiles = Shape::kKeys / 8, kDimTiles = kDim / 8;

 public:
  __device__ void begin() {
#pragma unroll
    for (int half = 0; half < 2; ++half) m_[half] = -INFINITY, l_[half] = 0;
#pragma unroll
    for (int i = 0; i < kDimTiles; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) o_[i][e] = 0;
  }

  /// Leaves the state in shared memory, of its sums a slice: those of the columns from `first` on.
  __device__ void put(const PartStates& to, int part, int n_queries, int first) {
    if (!live_) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = tile_ * 16 + half * 8 + lane_of() / 4, t = lane_of() % 4;
      float l = l_[half];
      l += __shfl_xor_sync(cuda::kAllLanes, l, 1);
      l += __shfl_xor_sync(cuda::kAllLanes, l, 2);
      if (query >= n_queries) continue;
      const int at = part * to.queries + query;
      if (t == 0) to.ml[at] = {m_[half] * to_log2_, l};
      float* o = to.o + at * to.pitch + t * 2;
#pragma unroll
      for (int c = 0; c < kDim; c += kLeastColumns) {
        if (c < first || c >= first + to.columns) continue;
#pragma unroll
        for (int i = 0; i < kLeastColumns; i += 8) {
          const float(&from)[4] = o_[(c + i) / 8];
          *reinterpret_cast<float2*>(o + c - first + i) = {from[half * 2], from[half * 2 + 1]};
        }
      }
    }
  }

 protected:
  __device__ WorkerState(const AttentionParams& p, int warp)
      : p_(p), tile_(warp % kQueryTiles), to_log2_(p.scale * kLog2E) {}

  __device__ static int lane_of() { return static_cast<int>(threadIdx.x % cuda::kWarp); }

  /// Place of a query's vector in q, in elements. The query is the pair's.
  __device__ int64_t query_at(const SeqView& v, const Chunk& k, int group, int query) const {
    const int row = min(query / group, v.n_rows - 1);
    const int64_t at =
        static_cast<int64_t>(v.first_row + row) * p_.n_heads + k.kv_head * group + query % group;
    return at * kDim;
  }
  /// Finds the rows of this warp's queries.
  __device__ void find_rows(const SeqView& v, int group, int first_query, int n_queries) {
    live_ = __any_sync(cuda::kAllLanes, tile_ * 16 < n_queries);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = first_query + tile_ * 16 + half * 8 + lane_of() / 4;
      row_[half] = min(query / group, v.n_rows - 1);
    }
  }

  /// Finds the keys of a unit that the lane's two rows see: bit 8 i + e is that of s[i][e].
  template <Seen kSeen>
  __device__ void find_seen(uint64_t (&see)[2], const SeqView& v, int first) const {
    if constexpr (kSeen == Seen::few) {
      see[0] = see[1] = slot_bits(0, 0, first) >> (lane_of() % 4 * 2);
    } else if constexpr (kSeen == Seen::by_rule) {
      // Four lanes share two rows. Even lanes find the first row's keys, odd lanes the second's.
      const int page = first / kPageTokens * kPageTokens;
      const uint64_t mine = visible_slots(p_, v, lane_of() % 2 == 0 ? row_[0] : row_[1], page);
      const uint64_t other = __shfl_xor_sync(cuda::kAllLanes, mine, 1);
      const int shift = first - page + lane_of() % 4 * 2;
      see[0] = (lane_of() % 2 == 0 ? mine : other) >> shift;
      see[1] = (lane_of() % 2 == 0 ? other : mine) >> shift;
    }
  }
  /// Scores of keys that are not seen become -inf.
  template <Seen kSeen>
  __device__ static void hide(float (&s)[kKeyTiles][4], const uint64_t (&see)[2]) {
    if constexpr (kSeen != Seen::all) {
#pragma unroll
      for (int i = 0; i < kKeyTiles; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (((see[e / 2] >> (i * 8 + e % 2)) & 1) == 0) s[i][e] = -INFINITY;
    }
  }

  /// Scores of kTiles tiles of keys from kFirst on become 2^(score - m), after m and l have moved
  /// to the new maximum. If any row of the warp has a new one, shrink(half, by) is to move o.
  template <int kFirst = 0, int kTiles = kKeyTiles, class F>
  __device__ void exponentials(float (&s)[kKeyTiles][4], const F& shrink) {
    float most[2] = {m_[0], m_[1]};
#pragma unroll
    for (int i = kFirst; i < kFirst + kTiles; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) most[e / 2] = fmaxf(most[e / 2], s[i][e]);
    float base[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      most[half] = fmaxf(most[half], __shfl_xor_sync(cuda::kAllLanes, most[half], 1));
      most[half] = fmaxf(most[half], __shfl_xor_sync(cuda::kAllLanes, most[half], 2));
      base[half] = most[half] == -INFINITY ? 0.0f : most[half] * to_log2_;
    }
    if (__any_sync(cuda::kAllLanes, most[0] > m_[0] || most[1] > m_[1])) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float by = cuda::exp2_fast(fmaf(m_[half], to_log2_, -base[half]));
        l_[half] *= by;
        shrink(half, by);
        m_[half] = most[half];
      }
    }
#pragma unroll
    for (int i = kFirst; i < kFirst + kTiles; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[i][e] = cuda::exp2_fast(fmaf(s[i][e], to_log2_, -base[e / 2]));
        l_[e / 2] += s[i][e];
      }
  }
  __device__ void shrink_sums(int half, float by) {
#pragma unroll
    for (int i = 0; i < kDimTiles; ++i) o_[i][half * 2] *= by, o_[i][half * 2 + 1] *= by;
  }

  /// The weights of 16 keys as an operand.
  __device__ static void pack(uint32_t (&p)[4], const float (&s)[kKeyTiles][4], int step) {
    p[0] = cuda::pack_bf16(s[step * 2][0], s[step * 2][1]);
    p[1] = cuda::pack_bf16(s[step * 2][2], s[step * 2][3]);
    p[2] = cuda::pack_bf16(s[step * 2 + 1][0], s[step * 2 + 1][1]);
    p[3] = cuda::pack_bf16(s[step * 2 + 1][2], s[step * 2 + 1][3]);
  }

  const AttentionParams& p_;
  int tile_;
  float to_log2_;      // from products to exponents of 2
  bool live_ = false;  // whether any of the warp's queries exists
  int row_[2];         // rows of the queries lane / 4 and 8 further
  float m_[2], l_[2], o_[kDimTiles][4];
};

/// On the matrix instruction of a warp, which has its queries in registers.
template <class Shape>
class Worker : public WorkerState<Shape> {
  using State = WorkerState<Shape>;
  using State::kDim, State::kKeyTiles, State::lane_of, State::o_;
  static constexpr int kSteps = kDim / 16;

 public:
  /// `queries`: kQueryBytes of shared memory.
  __device__ Worker(const AttentionParams& p, int warp, unsigned char* /*queries*/)
      : State(p, warp) {}

  /// Loads the queries of a pair; rows after the last one are zero.
  __device__ void load_queries(const SeqView& v, const Chunk& k, int group, int first_query,
                               int n_queries) {
    this->find_rows(v, group, first_query, n_queries);
    const int t = lane_of() % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int in_tile = this->tile_ * 16 + half * 8 + lane_of() / 4;
      const uint32_t* q =
          reinterpret_cast<const uint32_t*>(static_cast<const __nv_bfloat16*>(this->p_.q) +
                                            this->query_at(v, k, group, first_query + in_tile));
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        q_[step][half] = in_tile < n_queries ? q[step * 8 + t] : 0;
        q_[step][half + 2] = in_tile < n_queries ? q[step * 8 + t + 4] : 0;
      }
    }
  }

  /// One unit in shared memory. Which keys the rows see: all; by the rule, the first key's slot
  /// being `first`; or the first `first`. with_products(s) sees the products.
  template <Seen kSeen, class F>
  __device__ void unit(uint32_t k_unit, uint32_t v_unit, const SeqView& v, int first,
                       const F& with_products) {
    if (!this->live_) return;
    uint64_t see[2];
    this->template find_seen<kSeen>(see, v, first);
    float s[kKeyTiles][4];
    scores(s, k_unit);
    with_products(s);
    this->template hide<kSeen>(s, see);
    this->exponentials(s, [&](int half, float by) { this->shrink_sums(half, by); });
    values<kSeen != Seen::all>(s, v_unit, kSeen == Seen::few ? first : v.end - first);
  }

 private:
  /// Returns the place of a lane's first load in a unit. Rows have 128 bytes: piece i of 16 bytes
  /// lies at i ^ (row % 8). A lane's row is the same modulo 8 in all its loads, so further pieces
  /// are reached by xor into its address.
  __device__ static uint32_t lane_place(unsigned row, unsigned piece) {
    return row * 128 + (piece ^ row % 8) * 16;
  }

  __device__ void scores(float (&s)[kKeyTiles][4], uint32_t k_unit) const {
    const unsigned lane = lane_of();
    k_unit += lane_place(lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
    for (int i = 0; i < kKeyTiles; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[i][e] = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int pair = 0; pair < kKeyTiles / 2; ++pair) {
        uint32_t k[4];
        cuda::load_tiles(k,
                         (k_unit ^ (step % 4 * 32)) + step / 4 * Shape::kHalfBytes + pair * 2048);
        cuda::mma_bf16(s[pair * 2], q_[step], k[0], k[1]);
        cuda::mma_bf16(s[pair * 2 + 1], q_[step], k[2], k[3]);
      }
  }

  /// Adds the values, weighted. Rows of the unit from `written` on were never written and may hold
  /// NaN, which a weight of zero would not remove.
  template <bool kMasked>
  __device__ void values(const float (&s)[kKeyTiles][4], uint32_t v_unit, int written) {
    const unsigned lane = lane_of();
    v_unit += lane_place(lane % 16, lane / 16);
#pragma unroll
    for (int step = 0; step < Shape::kKeys / 16; ++step) {
      uint32_t p[4];
      this->pack(p, s, step);
      uint32_t keep[2];
      if constexpr (kMasked) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int key = step * 16 + i * 8 + lane_of() % 4 * 2;
          keep[i] = key + 1 < written ? 0xffffffffu : (key < written ? 0x0000ffffu : 0u);
        }
      }
#pragma unroll
      for (int dims = 0; dims < kDim / 16; ++dims) {
        uint32_t v[4];
        cuda::load_tiles_transposed(
            v, (v_unit ^ (dims % 4 * 32)) + dims / 4 * Shape::kHalfBytes + step * 2048);
        if constexpr (kMasked) {
#pragma unroll
          for (int i = 0; i < 4; ++i) v[i] &= keep[i % 2];
        }
        cuda::mma_bf16(o_[dims * 2], p, v[0], v[1]);
        cuda::mma_bf16(o_[dims * 2 + 1], p, v[2], v[3]);
      }
    }
  }

  uint32_t q_[kSteps][4];
};

}  // namespace mma_detail
}  // namespace tandem
