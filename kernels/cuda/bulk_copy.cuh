#pragma once
// Copies from device memory into shared memory by the copy engine (sm_90), and the barriers in
// shared memory on which they complete.
#include <cuda.h>
#include <stdint.h>

namespace tandem::cuda {

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// A barrier in shared memory with phases 0, 1, 2, ...: a phase ends when all arrivals and all
/// announced bytes are in.
struct SharedBarrier {
  uint64_t word;

  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&word)),
                 "r"(arrivals));
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&word))
                 : "memory");
  }
  /// Arrives and announces bytes that copies will bring in this phase.
  __device__ void arrive_expecting(int bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&word)),
        "r"(bytes)
        : "memory");
  }
  /// Waits for the end of the newest phase of this parity: the caller must be less than two phases
  /// away.
  __device__ void wait(int parity) {
    asm volatile(
        "{\n\t.reg .pred done;\n"
        "again:\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
        "@!done bra again;\n\t}" ::"r"(shared_address(&word)),
        "r"(parity)
        : "memory");
  }
};

/// Makes initialised barriers visible to the copy engine; a block barrier must follow.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
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

__device__ inline void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// Copies the map's box that starts at (column, row) to `to` (1024-byte aligned for 128-byte
/// swizzle). What lies outside the tensor arrives as zeros and is not read.
__device__ inline void copy_box(void* to, const CUtensorMap* map, int column, int row,
                                SharedBarrier& done, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_"
      "hint"
      " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(&done.word)), "l"(policy)
      : "memory");
}

}  // namespace tandem::cuda
