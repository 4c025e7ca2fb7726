#include "kernels/channels/score_channels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 128;

template <class T>
__global__ void __launch_bounds__(kThreads) score_channels_each(const ScoreChannelsParams p) {
  cuda::start_after_previous();
  const int64_t j = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (j >= p.n_channels) return;
  float score = 0;
  for (int b = 0; b < p.n_seqs; ++b) {
    const int64_t first = p.row_begin[b], last = p.row_begin[b + 1];
    if (first == last) continue;
    float weight = 1;
    if (p.weights.sums != nullptr) {
      const int64_t slot = p.slot[b];
      const float rows = p.weights.rows[slot * p.weights.rows_stride];
      if (rows > 0) weight = sqrtf(p.weights.sums[slot * p.weights.slot_stride + j] / rows);
    }
#pragma unroll 4
    for (int64_t r = first; r < last; ++r) {
      const float x = fabsf(cuda::to_float(static_cast<const T*>(p.gate)[r * p.n_channels + j]));
      score = p.largest ? fmaxf(score, x * weight) : fmaf(x, weight, score);
    }
  }
  p.scores[j] = p.norms != nullptr ? score * p.norms[j] : score;
}

}  // namespace

void score_channels_cuda(const ScoreChannelsParams& p, Stream stream) {
  if (p.n_channels == 0) return;
  cuda::with_act(p.type, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    cuda::launch(score_channels_each<T>, dim3(cuda::blocks_for(p.n_channels, kThreads)), kThreads,
                 stream, p);
  });
}

}  // namespace tandem
