#pragma once
// Hopper's copy engine (TMA): boxes of a tensor to shared memory, completion counted by a Barrier.
// Parts of a box outside the tensor, negative coordinates included, arrive as zeros and count as
// bytes.
#include <cuda.h>

#include "kernels/cuda/mbarrier.cuh"

namespace tandem::cuda {

/// Fetches the descriptor, which must be a __grid_constant__ parameter, ahead of its first use.
__device__ inline void tma_prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// How long copied lines should stay in L2.
__device__ inline uint64_t read_once_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline uint64_t read_again_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// Copies the box at coordinates (x, y), x the contiguous dimension. `to` is aligned to 1024 bytes.
__device__ inline void tma_load(void* to, const CUtensorMap& map, Barrier& done, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4}], [%2];" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(&done)), "r"(x), "r"(y)
      : "memory");
}

/// The same with a policy of the above.
__device__ inline void tma_load(void* to, const CUtensorMap& map, Barrier& done, int x, int y,
                                uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_"
      "hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(shared_address(&done)), "l"(policy)
      : "memory");
}

__device__ inline void tma_load(void* to, const CUtensorMap& map, Barrier& done, int x, int y,
                                int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4, %5}], [%2];" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(&done)), "r"(x), "r"(y), "r"(z)
      : "memory");
}

}  // namespace tandem::cuda
