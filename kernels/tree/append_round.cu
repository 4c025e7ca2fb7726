#include "kernels/cuda/launch.cuh"
#include "kernels/tree/append_round.h"

namespace tandem {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 8;  // elements a thread

// Blocks of y for the tokens of a sequence, of z for sequences.
__global__ void __launch_bounds__(kThreads) append_rows(const AppendRoundParams p) {
  cuda::start_after_previous();
  const int seq = static_cast<int>(blockIdx.z), i = static_cast<int>(blockIdx.y);
  const Growth g = growth_of(p, seq);
  if (i >= g.n) return;
  const float* const from =
      p.logits + (int64_t{seq} * p.n_nodes + source_node(p, seq, i)) * p.vocab;
  float* const to =
      p.chain_logits + int64_t{p.chain_row[int64_t{seq} * p.n_chain + g.before + i]} * p.vocab;
  const int begin = static_cast<int>(blockIdx.x) * kThreads * kEach + static_cast<int>(threadIdx.x);
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int at = begin + e * kThreads;
    if (at < p.vocab) to[at] = from[at];
  }
}

__global__ void __launch_bounds__(kThreads) append_ids(const AppendRoundParams p) {
  cuda::start_after_previous();
  const int seq = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (seq < p.n_seqs) append_tokens(p, seq, growth_of(p, seq));
}

}  // namespace

void append_round_cuda(const AppendRoundParams& p, Stream stream) {
  if (p.n_seqs == 0) return;
  cuda::launch(append_rows,
               dim3(cuda::blocks_for(p.vocab, kThreads * kEach), static_cast<unsigned>(p.max_kept),
                    static_cast<unsigned>(p.n_seqs)),
               kThreads, stream, p);
  cuda::launch(append_ids, cuda::blocks_for(p.n_seqs, kThreads), kThreads, stream, p);
}

}  // namespace tandem
