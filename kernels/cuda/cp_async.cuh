#pragma once
// Asynchronous copies of single threads from global to shared memory (cp.async).
#include <stdint.h>

namespace tandem::cuda {

/// Copies kBytes (4, 8 or 16, to which both addresses are aligned), or zeros where not `wanted`;
/// then `from` is not read.
template <int kBytes>
__device__ inline void copy_async(uint32_t to, const void* from, bool wanted = true) {
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(wanted ? 16 : 0)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes),
                 "r"(wanted ? kBytes : 0)
                 : "memory");
}

/// Ends a group of this thread's copies; it may be empty.
__device__ inline void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most kPending of this thread's groups, the newest, are under way. Other threads
/// see the copies after a barrier.
template <int kPending>
__device__ inline void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Takes a number from 1 to 7 that is known when it runs.
__device__ inline void copies_wait(int pending) {
  if (pending > 4)
    return pending > 6 ? copies_wait<7>() : pending > 5 ? copies_wait<6>() : copies_wait<5>();
  if (pending > 2) return pending > 3 ? copies_wait<4>() : copies_wait<3>();
  return pending > 1 ? copies_wait<2>() : copies_wait<1>();
}

}  // namespace tandem::cuda
