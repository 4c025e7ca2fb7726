#pragma once
// The working warps of few_rows_mma.cuh on Hopper's matrix instruction of a warpgroup, which takes
// the 64 queries of a tile together. Bits are those of the warps' own instruction.
#include "kernels/attention/few_rows_mma.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace tandem {

/// Queries lie in shared memory, as operands do; sums of 256 columns take half of the registers.
template <int kDim_, int kKeys_ = 64 * 128 / kDim_>
struct GroupShape {
  static constexpr int kDim = kDim_, kQueryTiles = 4, kQueries = 64;
  static constexpr int kParts = 1, kWarps = kQueryTiles, kWorkers = kWarps * cuda::kWarp;
  static constexpr int kKeys = kKeys_, kUnits = kPageTokens / kKeys;
  static constexpr int kHalves = kDim / 64, kHalfBytes = kKeys * cuda::kSwizzleRow;
  static constexpr int kUnitBytes = kHalves * kHalfBytes;
  static constexpr int kMaxStages = 12;
  static constexpr int kQueryBytes = kQueries * kDim * 2;
};

namespace mma_detail {

template <int kDim, int kKeys>
class Worker<GroupShape<kDim, kKeys>> : public WorkerState<GroupShape<kDim, kKeys>> {
  using Shape = GroupShape<kDim, kKeys>;
  using State = WorkerState<Shape>;
  using State::kKeyTiles, State::lane_of;
  static_assert(Shape::kWorkers == cuda::kWarpgroup);

 public:
  __device__ Worker(const AttentionParams& p, int warp, unsigned char* queries)
      : State(p, warp), queries_(queries) {}

  /// Puts the queries of a pair into shared memory, rows after the last one as zeros. Columns come
  /// by 64, in rows of 128 bytes swizzled like those of units. All working warps call this
  /// together.
  __device__ void load_queries(const SeqView& v, const Chunk& k, int group, int first_query,
                               int n_queries) {
    this->find_rows(v, group, first_query, n_queries);
    constexpr int kPieces = kDim / 8, kOnce = cuda::kWarp / kPieces;  // pieces: 16 bytes
    const int piece = lane_of() % kPieces;
#pragma unroll
    for (int i = 0; i < 16; i += kOnce) {
      const int row = this->tile_ * 16 + i + lane_of() / kPieces;
      uint4 x = {};
      if (row < n_queries)
        x = *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(this->p_.q) +
                                            this->query_at(v, k, group, first_query + row) +
                                            piece * 8);
      *reinterpret_cast<uint4*>(queries_ + piece / 8 * (Shape::kQueries * cuda::kSwizzleRow) +
                                row * cuda::kSwizzleRow + (piece % 8 ^ row % 8) * 16) = x;
    }
    cuda::shared_writes_fence();
    sync_workers<Shape::kWorkers>();
  }

  /// Takes a unit like other workers. Rows that do not exist are computed, too.
  template <Seen kSeen, class F>
  __device__ void unit(uint32_t k_unit, uint32_t v_unit, const SeqView& v, int first,
                       const F& with_products) {
    float s[kKeyTiles][4];
    auto& products = reinterpret_cast<float(&)[kKeys / 2]>(s);
    start_scores(products, k_unit);
    uint64_t see[2];
    this->template find_seen<kSeen>(see, v, first);
    const int written = kSeen == Seen::few ? first : v.end - first;
    if (kSeen != Seen::all && written < kKeys) clear_values(v_unit, max(written, 0));
    cuda::wgmma_wait<0>();
    cuda::wgmma_done(products);
    if (this->live_) with_products(s);
    this->template hide<kSeen>(s, see);
    const uint64_t values = cuda::wgmma_operand(v_unit, Shape::kHalfBytes);
    uint32_t weights[kKeys / 16][4];
    add_values<0>(s, weights, values);
    cuda::wgmma_wait<0>();
    cuda::wgmma_done(sums());
    cuda::wgmma_done(weights[kKeys / 16 - 1]);
  }

 private:
  __device__ float (&sums())[kDim / 2] { return reinterpret_cast<float(&)[kDim / 2]>(this->o_); }

  /// Puts the products with a unit's keys under way.
  __device__ void start_scores(float (&products)[kKeys / 2], uint32_t k_unit) const {
    cuda::wgmma_fresh(products);
    cuda::wgmma_begin();
#pragma unroll
    for (int c = 0; c < Shape::kHalves; ++c) {
      const uint64_t a = cuda::wgmma_operand(
          cuda::shared_address(queries_) + c * Shape::kQueries * cuda::kSwizzleRow, 0);
      const uint64_t b = cuda::wgmma_operand(k_unit + c * Shape::kHalfBytes, 0);
#pragma unroll
      for (int step = 0; step < 4;
           ++step)  // 16 columns, 32 bytes: 2 in units of an operand's start
        cuda::wgmma_ss(products, a + 2 * step, b + 2 * step, c + step > 0);
    }
    cuda::wgmma_commit();
  }

  /// Zeros rows of a unit of V that were never written and may hold NaN, which a weight of zero
  /// would not remove.
  __device__ static void clear_values(uint32_t v_unit, int written) {
    for (int i = threadIdx.x; i < (kKeys - written) * 8; i += Shape::kWorkers)
#pragma unroll
      for (int c = 0; c < Shape::kHalves; ++c)
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(
                         v_unit + c * Shape::kHalfBytes + (written + i / 8) * cuda::kSwizzleRow +
                         i % 8 * 16),
                     "r"(0)
                     : "memory");
    cuda::shared_writes_fence();
    sync_workers<Shape::kWorkers>();
  }

  /// Turns scores into weights and adds the values, 16 keys at a time: those are the units of the
  /// other workers, whose bits this gives. Weights of a step are worked out while values of the
  /// step before are added.
  template <int kStep>
  __device__ void add_values(float (&s)[kKeyTiles][4], uint32_t (&weights)[kKeys / 16][4],
                             uint64_t values) {
    bool moves = false;
    float moved[2];
    this->template exponentials<2 * kStep, 2>(s, [&](int half, float by) {
      moves = true;
      moved[half] = by;
    });
    this->pack(weights[kStep], s, kStep);
    if constexpr (kStep > 0) {
      cuda::wgmma_wait<0>();
      cuda::wgmma_done(sums());
      cuda::wgmma_done(weights[kStep - 1]);
    }
    if (moves)
#pragma unroll
      for (int half = 0; half < 2; ++half) this->shrink_sums(half, moved[half]);
    cuda::wgmma_begin();
    cuda::wgmma_rs(sums(), weights[kStep], values + 2048 / 16 * kStep);  // 16 keys, 2048 bytes
    cuda::wgmma_commit();
    if constexpr (16 * (kStep + 1) < kKeys) add_values<kStep + 1>(s, weights, values);
  }

  unsigned char* queries_;
};

}  // namespace mma_detail
}  // namespace tandem
