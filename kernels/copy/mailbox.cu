#include "kernels/copy/mailbox.h"

#include <algorithm>

#include "kernels/cuda/launch.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 256;
// As many as keep a link busy.
constexpr unsigned kMostBlocks = 16;

/// All blocks together, in accesses of T.
template <class T>
__device__ size_t copy_as(const MailboxPart& part, size_t done) {
  const auto* from = static_cast<const T*>(part.from);
  auto* to = static_cast<T*>(part.to);
  const size_t n = part.bytes / sizeof(T);
  // Never from a cache: the host writes again between two runs of a graph.
  for (size_t i = done / sizeof(T) + blockIdx.x * kThreads + threadIdx.x; i < n;
       i += size_t{gridDim.x} * kThreads)
    to[i] = __ldcv(from + i);
  return n * sizeof(T);
}

__device__ void copy_parts(const MailboxParams& p) {
  for (int i = 0; i < p.n_parts; ++i) {
    const MailboxPart& part = p.parts[i];
    const auto ends = reinterpret_cast<uintptr_t>(part.to) | reinterpret_cast<uintptr_t>(part.from);
    const size_t done = ends % sizeof(uint4) == 0 ? copy_as<uint4>(part, 0) : 0;
    copy_as<uint32_t>(part, done);
  }
}

__global__ void __launch_bounds__(kThreads) post(const MailboxParams p) {
  cuda::start_after_previous();
  copy_parts(p);
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0 || atomicAdd(&p.state->tickets, 1u) + 1 < gridDim.x) return;
  p.state->tickets = 0;
  const uint32_t number = p.state->number + 1;
  p.state->number = number;
  __threadfence_system();
  *const_cast<volatile uint32_t*>(&p.flags->posted) = number;
}

// In blocks that are here at once: none is kept from running by others that wait.
__global__ void __launch_bounds__(kThreads) await(const MailboxParams p) {
  cuda::start_after_previous();
  __shared__ bool answered;
  if (threadIdx.x == 0) {
    const uint32_t number = p.state->number;
    uint32_t newest, aborted;
    do {
      asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];"
                   : "=r"(newest), "=r"(aborted)
                   : "l"(&p.flags->answered)
                   : "memory");
    } while (static_cast<int32_t>(newest - number) < 0 && aborted == 0);
    answered = static_cast<int32_t>(newest - number) >= 0;
    __threadfence_system();
  }
  __syncthreads();
  if (answered) copy_parts(p);
}

unsigned blocks_of(const MailboxParams& p) {
  size_t most = sizeof(uint4);
  for (int part = 0; part < p.n_parts; ++part) most = std::max(most, p.parts[part].bytes);
  return std::min(cuda::blocks_for(static_cast<int64_t>(most / sizeof(uint4)), kThreads),
                  kMostBlocks);
}

}  // namespace

void post_cuda(const MailboxParams& p, Stream stream) {
  cuda::launch(post, blocks_of(p), kThreads, stream, p);
}

void await_cuda(const MailboxParams& p, Stream stream) {
  cuda::launch(await, blocks_of(p), kThreads, stream, p);
}

}  // namespace tandem
