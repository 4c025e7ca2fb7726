#pragma once
// Clusters of blocks on Hopper, which reach each other's shared memory.
#include <stdint.h>

namespace tandem::cuda {

/// The first half of a barrier among all threads of a cluster. It orders no accesses to memory.
__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

/// The address of block `rank` of the cluster for an address of this block's shared memory.
__device__ inline uint32_t cluster_address(uint32_t address, int rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

/// Stores two numbers in another block, whose barrier counts their bytes.
__device__ inline void store_async(uint32_t to, float a, float b, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::
          "r"(to),
      "f"(a), "f"(b), "r"(barrier)
      : "memory");
}

}  // namespace tandem::cuda
