// Attention's backward pass for Hopper in bf16 with d 256. Sums of keys take all registers of a
// block, so that roles differ from those of backward.cu: backward_wide_shape.cuh describes them.
#include <algorithm>

#include "kernels/attention/hopper/backward_wide_compute.cuh"
#include "kernels/attention/hopper/backward_wide_copy.cuh"

namespace tandem::hopper {
namespace {

__global__ void __launch_bounds__(WideShape::kThreads, 1)
    backward_wide_kernel(const __grid_constant__ BackwardMaps maps,
                         const __grid_constant__ AttentionBackwardParams p,
                         const __grid_constant__ BackwardWork work) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = WideShape;
  constexpr int kBetween = 3;  // barrier between the kinds of pieces, which share the tiles
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& m = *reinterpret_cast<WideMemory*>(memory);
  const int warp = begin_block(m, maps), role = warp / 4;
  if (role == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Shape::kCopyRegisters));
    WidePieces pieces(m, p, work);
    if (warp == 0) load_of_keys(m, p, work, maps, pieces);
    cuda::named_sync(kBetween, Shape::kThreads);
    if (warp == 0) load_of_queries(m, p, maps, pieces);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Shape::kComputeRegisters));
    role == 1 ? compute_of_keys<true>(m, p) : compute_of_keys<false>(m, p);
    cuda::shared_writes_fence();
    cuda::named_sync(kBetween, Shape::kThreads);
    compute_of_queries(m, p, work, role - 1);
  }
#endif
}

}  // namespace

void backward_wide(const AttentionBackwardParams& p, const AttentionBackwardLaunch& l,
                   const BackwardMaps& maps, Stream stream) {
  using Shape = WideShape;
  const BackwardWork work = prepare_backward(p, l, Shape::kTileRows, stream);
  constexpr int kBytes = sizeof(WideMemory);
  static_assert(kBytes <= 227 * 1024, "a block has at most 227 KiB of shared memory");
  (void)cudaFuncSetAttribute(backward_wide_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             kBytes);
  const auto all = static_cast<unsigned>(cuda::gpu().multiprocessors);
  cuda::launch(backward_wide_kernel, std::min(2 * work.pieces(p), all), Shape::kThreads, kBytes, 1,
               stream, maps, p, work);
}

}  // namespace tandem::hopper
