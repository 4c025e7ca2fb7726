#include "kernels/channels/score_of.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 128;

template <class T>
__global__ void __launch_bounds__(kThreads) score_channels_each(const ScoreChannelsParams p) {
  cuda::start_after_previous();
  const int64_t j = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (j >= p.n_channels) return;
  p.scores[j] = score_of<T>(p, j);
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
