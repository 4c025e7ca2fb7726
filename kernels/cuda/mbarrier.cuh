#pragma once
// Barriers in shared memory (mbarrier), which count arriving threads, asynchronous copies and, on
// Hopper, bytes of the copy engine; and the named barriers between some warps of a block.
#include <stdint.h>

namespace tandem::cuda {

/// Address of shared memory as PTX takes it.
__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// A barrier in shared memory whose phases alternate between parity 0 and 1. One thread calls init,
/// then all see it after init_fence and __syncthreads.
struct alignas(8) Barrier {
  uint64_t state;

  /// `arrivals` of a phase: threads that call arrive or arrive_expecting.
  __device__ void init(unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)),
                 "r"(arrivals));
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }
  /// Arrives once all copies that this thread has started so far (cp_async.cuh) are done.
  __device__ void arrive_after_copies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(this))
                 : "memory");
  }
  /// Arrives and makes the phase wait for this many bytes of the copy engine, too.
  __device__ void arrive_expecting(unsigned bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)),
        "r"(bytes)
        : "memory");
  }
  /// Waits until the phase of this parity is over. A new barrier is in phase 0, so that waiting for
  /// parity 1 returns at once.
  __device__ void wait(unsigned parity) const {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "AGAIN:\n"
#if __CUDA_ARCH__ >= 900
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#else
        "mbarrier.test_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#endif
        "@done bra OVER;\n"
        "bra AGAIN;\n"
        "OVER:\n"
        "}\n" ::"r"(shared_address(this)),
        "r"(parity)
        : "memory");
  }
};

/// Makes initialised barriers visible to the copy engine.
__device__ inline void init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// A stage on a walk around a ring, and the parity that its barriers are waited for with.
struct Turn {
  int stage = 0;
  unsigned parity = 0;
  __device__ void advance(int stages) {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

/// Orders this thread's writes to shared memory before later reads and writes by the copy engine
/// and by wgmma, which use another path to it.
__device__ inline void shared_writes_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Barrier `id` (1 to 15; 0 is that of __syncthreads) among `threads` threads, whole warps: waits.
__device__ inline void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// The same barrier without waiting.
__device__ inline void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace tandem::cuda
