// Attention's backward pass for Hopper: bf16, d 64 or 128, and d 256 by backward_wide.cu. The
// portable body's division of work, which blocks take piece by piece, with FlashAttention-3's roles
// (Shah et al. 2024): copying and computing warpgroups, products under way while weights are
// computed.
#include <algorithm>

#include "kernels/attention/hopper/backward_compute.cuh"
#include "kernels/attention/hopper/backward_copy.cuh"
#include "kernels/cuda/tensor_map.h"

namespace tandem::hopper {
namespace {

template <int kDim>
__global__ void __launch_bounds__(BackwardShape<kDim>::kThreads, 1)
    backward_kernel(const __grid_constant__ BackwardMaps maps,
                    const __grid_constant__ AttentionBackwardParams p,
                    const __grid_constant__ BackwardWork work) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = BackwardShape<kDim>;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& m = *reinterpret_cast<BackwardMemory<kDim>*>(memory);
  const int warp = begin_block(m, maps), role = warp / 4;
  if (role == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Shape::kCopyRegisters));
    if (threadIdx.x == 0) take_pieces<kDim>(m, p, work, maps);
    if (threadIdx.x == cuda::kWarp) copy_columns<kDim>(m, p, maps);
    if (warp == 2) copy_stats<kDim>(m, work);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Shape::kComputeRegisters));
    StageRing<Shape::kStages> ring;
    RowRing<kDim> rows{static_cast<unsigned>(role - 1)};
    compute_pieces<kDim, true>(m, p, work, rows, ring);
    compute_pieces<kDim, false>(m, p, work, rows, ring);
  }
#endif
}

/// q or dout, of which a box is 64 queries of a head.
CUtensorMap query_map(const void* at, const AttentionBackwardParams& p, int n_rows) {
  const auto d = static_cast<uint64_t>(p.head_dim), heads = static_cast<uint64_t>(p.n_heads);
  return cuda::tensor_map_bf16(at, {.rank = 3,
                                    .size = {d, heads, static_cast<uint64_t>(n_rows)},
                                    .stride_bytes = {0, d * 2, heads * d * 2},
                                    .box = {64, 1, kPageTokens}});
}
/// A pool, as one long matrix: how many pages there are is not known here, and the page table never
/// asks for more.
CUtensorMap pool_map(const void* pool, int d) {
  constexpr int64_t kRows = 0x7fffffc0;  // coordinates are 32 bits with a sign
  return cuda::swizzled_map(pool, kRows, d, kPageTokens);
}

BackwardMaps maps_of(const AttentionBackwardParams& p, int n_rows) {
  return {query_map(p.q, p, n_rows), query_map(p.dout, p, n_rows), pool_map(p.k_pool, p.head_dim),
          pool_map(p.v_pool, p.head_dim)};
}

template <int kDim>
void launch(const AttentionBackwardParams& p, const AttentionBackwardLaunch& l, Stream stream) {
  using Shape = BackwardShape<kDim>;
  const BackwardWork work = prepare_backward(p, l, Shape::kRows, stream);
  const auto kernel = backward_kernel<kDim>;
  constexpr int kBytes = sizeof(BackwardMemory<kDim>);
  static_assert(kBytes <= 227 * 1024, "a block has at most 227 KiB of shared memory");
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const auto all = static_cast<unsigned>(cuda::gpu().multiprocessors);
  cuda::launch(kernel, std::min(work.pieces(p), all), Shape::kThreads, kBytes, 1, stream,
               maps_of(p, l.n_rows), p, work);
}

/// Whether this body takes the call: rows that the copy engine can read.
bool supported(const AttentionBackwardParams& p) {
  const auto aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  return p.act == DType::bf16 && (p.head_dim == 64 || p.head_dim == 128 || p.head_dim == 256) &&
         aligned(p.dqkv) && aligned(p.q) && aligned(p.dout) && aligned(p.k_pool) &&
         aligned(p.v_pool);
}

}  // namespace

void attention_backward_cuda(const AttentionBackwardParams& p, const AttentionBackwardLaunch& l,
                             Stream stream) {
  if (!supported(p)) return portable::attention_backward_cuda(p, l, stream);
  if (l.n_rows == 0 || p.n_seqs == 0) return;
  if (p.head_dim == 256) return backward_wide(p, l, maps_of(p, l.n_rows), stream);
  p.head_dim == 128 ? launch<128>(p, l, stream) : launch<64>(p, l, stream);
}

}  // namespace tandem::hopper
