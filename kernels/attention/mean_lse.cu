#include "kernels/attention/mean_lse.h"

#include "kernels/cuda/launch.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 128;

/// A thread a layer and head of a sequence.
__global__ void __launch_bounds__(kThreads) mean_lse(const MeanLseParams p) {
  cuda::start_after_previous();
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int s = static_cast<int>(blockIdx.y);
  const int layer = i / p.n_heads, head = i % p.n_heads;
  const int begin = p.row_begin[s], end = p.row_begin[s + 1];
  if (layer >= p.n_layers || begin == end) return;
  p.out[p.slot[s] * p.out_slot_stride + layer * p.out_layer_stride + head] =
      mean_of_rows(p, layer, head, begin, end);
}

}  // namespace

void mean_lse_cuda(const MeanLseParams& p, Stream stream) {
  if (p.n_seqs == 0) return;
  cuda::launch(mean_lse,
               dim3(cuda::blocks_for(int64_t{p.n_layers} * p.n_heads, kThreads),
                    static_cast<unsigned>(p.n_seqs)),
               kThreads, stream, p);
}

}  // namespace tandem
