#include "kernels/channels/channel_norms.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/linear/code_tiles.cuh"

namespace tandem {
namespace {

constexpr int kWarps = 8;  // of a block

template <class T>
__global__ void __launch_bounds__(kWarps* cuda::kWarp)
    channel_norms_warp(const ChannelNormsParams p) {
  cuda::start_after_previous();
  const int64_t j = int64_t{blockIdx.x} * kWarps + cuda::warp_of();
  if (j >= p.n_channels) return;
  double norm = 1;
  for (int64_t q = 0; q < p.n_parts; ++q) {
    const T* const channel =
        static_cast<const T*>(p.weights) + q * p.part_stride + j * p.channel_stride;
    const int row = static_cast<int>(q * p.n_channels + j);  // gates, then ups
    const auto number = [&](int i) {
      if (p.codes.data == nullptr) return cuda::to_float(channel[i * p.number_stride]);
      return p.codes.by_input ? tiles::number_at(p.codes, i, row)
                              : tiles::number_at(p.codes, row, i);
    };
    double sum = 0;
    for (int i = cuda::lane_of(); i < p.width; i += cuda::kWarp) {
      const double x = number(i);
      sum += x * x;
    }
    for (int step = cuda::kWarp / 2; step > 0; step /= 2)
      sum += __shfl_xor_sync(cuda::kAllLanes, sum, step);
    norm *= sqrt(sum);
  }
  if (cuda::lane_of() == 0) p.norms[j] = static_cast<float>(norm);
}

}  // namespace

void channel_norms_cuda(const ChannelNormsParams& p, Stream stream) {
  if (p.n_channels == 0) return;
  cuda::with_act(p.type, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    cuda::launch(channel_norms_warp<T>, dim3(cuda::blocks_for(p.n_channels, kWarps)),
                 kWarps * cuda::kWarp, stream, p);
  });
}

}  // namespace tandem
