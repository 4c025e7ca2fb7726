#include <algorithm>

#include "kernels/copy/host_copy.h"
#include "kernels/cuda/launch.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 256;
// As many as keep a link busy; one load a thread serves 64 KB.
constexpr unsigned kMostBlocks = 16;

__global__ void __launch_bounds__(kThreads) host_copy(const HostCopyParams p) {
  cuda::start_after_previous();
  const ptrdiff_t turn = p.turn == nullptr ? 0 : *p.turn;
  const auto* from =
      reinterpret_cast<const uint4*>(static_cast<const char*>(p.from) + turn * p.from_step);
  auto* to = reinterpret_cast<uint4*>(static_cast<char*>(p.to) + turn * p.to_step);
  // Never from a cache: the host writes again between two runs of a graph.
  for (size_t i = blockIdx.x * kThreads + threadIdx.x; i < p.bytes / sizeof(uint4);
       i += size_t{gridDim.x} * kThreads)
    to[i] = __ldcv(from + i);
}

__global__ void read_clock(uint64_t* ns) {
  cuda::start_after_previous();
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(*ns));
}

}  // namespace

void host_copy_cuda(const HostCopyParams& p, Stream stream) {
  if (p.bytes == 0) return;
  const unsigned blocks = cuda::blocks_for(static_cast<int64_t>(p.bytes / sizeof(uint4)), kThreads);
  cuda::launch(host_copy, std::min(blocks, kMostBlocks), kThreads, stream, p);
}

void read_clock_cuda(uint64_t* ns, Stream stream) { cuda::launch(read_clock, 1, 1, stream, ns); }

}  // namespace tandem
