// Attention of few rows in bf16 by Hopper's copy engine: one lane of the loading warp asks for
// units. Calls with lists, whose keys lie apart, take the copies of lanes.
#include "kernels/attention/few_rows_bodies.cuh"
#include "kernels/attention/few_rows_copies.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/tma.cuh"

namespace tandem::hopper {
namespace {

template <class Shape>
class EngineCopies {
 public:
  struct Source {
    CUtensorMap k, v;
  };
  static constexpr int kWarps = 1;
  static constexpr unsigned kArrivals = 1;
  static constexpr bool kLists = false;

  __device__ static void prepare(const Source& source) {
    cuda::init_fence();
    cuda::tma_prefetch_map(source.k);
    cuda::tma_prefetch_map(source.v);
  }
  __device__ EngineCopies(const FewRowsCall& call, const Source& source)
      : source_(source),
        // Tiles of one KV head read the same pages: only with one tile are they read once.
        policy_(call.rule.max_tiles == 1 ? cuda::read_once_policy() : cuda::read_again_policy()) {}

  __device__ static bool working(int lane) { return lane == 0; }

  __device__ void start(cuda::Barrier& full, unsigned char* unit, int row, int) const {
    full.arrive_expecting(2 * Shape::kUnitBytes);
#pragma unroll
    for (int half = 0; half < Shape::kHalves; ++half) {
      cuda::tma_load(unit + half * Shape::kHalfBytes, source_.k, full, half * 64, row, policy_);
      cuda::tma_load(unit + Shape::kUnitBytes + half * Shape::kHalfBytes, source_.v, full,
                     half * 64, row, policy_);
    }
  }

 private:
  const Source& source_;
  uint64_t policy_;
};

template <int kDim>
void launch(const FewRowsCall& call, cudaStream_t stream) {
  with_mma_shape<kDim>(call.rule.tile_queries, [&](auto* shape) {
    using Shape = std::remove_pointer_t<decltype(shape)>;
    // No call knows how many pages a pool has: the map is as tall as 32-bit coordinates allow, and
    // only pages of the table are read.
    constexpr int64_t kRows = int64_t{1} << 31;
    const typename EngineCopies<Shape>::Source source = {
        cuda::swizzled_map(call.params.k_pool, kRows, kDim, Shape::kKeys),
        cuda::swizzled_map(call.params.v_pool, kRows, kDim, Shape::kKeys)};
    launch_few_rows_mma<Shape, EngineCopies<Shape>>(call, source, stream, true);
  });
}

void mma(const FewRowsCall& call, cudaStream_t stream) {
  const bool narrow = call.params.head_dim == 64;
  if (call.params.lists.ids != nullptr)
    narrow ? launch_async_copies<64>(call, stream, true)
           : launch_async_copies<128>(call, stream, true);
  else
    narrow ? launch<64>(call, stream) : launch<128>(call, stream);
}

}  // namespace

void attention_few_rows_cuda(const AttentionParams& p, const AttentionLaunch& l, Stream stream) {
  attention_few_rows(p, l, stream, mma);
}

}  // namespace tandem::hopper
