#pragma once
// Prefill for Hopper: bf16 chains, d 64, 128 or 256. The scheme is FlashAttention-3's (Shah et al.
// 2024): copying and computing warpgroups, softmax of one tile during the matrix products of
// another, groups in turns; the tiles of keys are pages of the KV cache and the queries of a KV
// group share a tile.
#include "kernels/attention/hopper/compute_role.cuh"
#include "kernels/attention/hopper/copy_role.cuh"

namespace tandem::hopper {

struct PrefillMaps {
  CUtensorMap q, k, v;
};

template <int kDim, class Out>
__global__ void __launch_bounds__(TileShape<kDim>::kThreads, 1)
    prefill_kernel(const __grid_constant__ PrefillMaps maps,
                   const __grid_constant__ AttentionParams p, const Packing pack) {
  using Shape = TileShape<kDim>;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char memory[];
  TileMemory<kDim>& m = TileMemory<kDim>::at(memory);
  if (threadIdx.x == 0) {
    cuda::tma_prefetch_map(maps.q);
    cuda::tma_prefetch_map(maps.k);
    cuda::tma_prefetch_map(maps.v);
    m.init_barriers();
  }
  count_tiles(p, Shape::kQueries >> pack.shift, m.tiles_before);
  __syncthreads();
  // Uniform in a warp, and the compiler knows it.
  const int role =
      __shfl_sync(cuda::kAllLanes, static_cast<int>(threadIdx.x / cuda::kWarpgroup), 0);
  if (role == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Shape::kCopyRegisters));
    if (threadIdx.x == 0) copy_tiles<kDim>(m, p, pack, maps.q, maps.k, maps.v);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Shape::kComputeRegisters));
    compute_tiles<kDim, Out>(m, p, pack, role - 1);
  }
#endif
}

}  // namespace tandem::hopper
