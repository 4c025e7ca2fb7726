#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/tree/propose_lookup.h"

namespace tandem {
namespace {

constexpr int kThreads = 1024;
constexpr int kEach = 8;  // places a thread asks for at once

__device__ uint64_t block_max(uint64_t x) {
  constexpr int kWarps = kThreads / cuda::kWarp;
  static_assert(kWarps == cuda::kWarp, "one warp reduces the results of all warps");
  __shared__ unsigned long long parts[kWarps];
  const auto warp_max = [](unsigned long long y) {
    for (int step = cuda::kWarp / 2; step > 0; step /= 2) {
      const unsigned long long other = __shfl_xor_sync(cuda::kAllLanes, y, step);
      y = other > y ? other : y;
    }
    return y;
  };
  const unsigned long long of_warp = warp_max(x);
  if (cuda::lane_of() == 0) parts[cuda::warp_of()] = of_warp;
  __syncthreads();
  return warp_max(parts[cuda::lane_of()]);
}

// A block a sequence: a text of 131,072 tokens is half a MiB, a matter of microseconds.
__global__ void __launch_bounds__(kThreads) look_up(const ProposeLookupParams p) {
  cuda::start_after_previous();
  const int seq = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const SeenText text = text_of(p, seq);
  const int32_t last = text.length > 0 ? text.tokens[text.length - 1] : 0;
  Agreement best{};
  // The latest places first: the first of the best agreement is the thread's.
  for (int end = text.length - 1; end > 0 && best.n < p.longest; end -= kThreads * kEach) {
    bool is_last[kEach];
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int place = end - 1 - thread - e * kThreads;
      is_last[e] = place >= 0 && text.tokens[place] == last;
    }
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      if (!is_last[e]) continue;
      const int place = end - 1 - thread - e * kThreads;
      const int n = agreeing(text, place, p.longest);
      if (n > best.n) best = {n, place};
    }
  }
  best = unpacked(block_max(packed(best)));
  const int n = n_following(p, text, best);
  for (int node = thread; node < p.n_nodes; node += kThreads)
    write_node(p, seq, node, text, best, n);
}

}  // namespace

void propose_lookup_cuda(const ProposeLookupParams& p, Stream stream) {
  if (p.n_seqs == 0) return;
  cuda::launch(look_up, static_cast<unsigned>(p.n_seqs), kThreads, stream, p);
}

}  // namespace tandem
