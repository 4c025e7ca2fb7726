#include <cmath>

#include "base/rng.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/embed/fill_random.h"

namespace tandem {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 16;  // Philox blocks of a group

/// A thread draws one Philox block: elements l, l + 16, .. l + 112 of a group of 128.
template <class T>
__global__ void __launch_bounds__(kThreads) fill_blocks(const FillRandomParams p, float step) {
  cuda::start_after_previous();
  const uint64_t block = static_cast<uint64_t>(p.first / kFillGroup) * kLanes +
                         uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  const auto words = draw4(p.seed, static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                           DrawPurpose::weights, p.tensor);
  const int64_t i = static_cast<int64_t>(block / kLanes) * kFillGroup + block % kLanes;
#pragma unroll
  for (int slot = 0; slot < 8; ++slot) {
    const int64_t j = i + slot * kLanes - p.first;
    if (j < 0 || j >= p.count) continue;
    const uint32_t level = (words[slot / 2] >> (slot % 2 * 16)) & 0xffffu;
    static_cast<T*>(p.out)[j] =
        cuda::from_float<T>(static_cast<float>(2 * static_cast<int>(level) - 65535) * step);
  }
}

}  // namespace

void fill_random_cuda(const FillRandomParams& p, Stream stream) {
  if (p.count == 0) return;
  const auto step = static_cast<float>(p.stddev * std::sqrt(3.0 / (65536.0 * 65536.0 - 1.0)));
  const int64_t groups = (p.first + p.count - 1) / kFillGroup - p.first / kFillGroup + 1;
  cuda::with_act(p.to, [&](auto* to) {
    using T = std::remove_pointer_t<decltype(to)>;
    cuda::launch(fill_blocks<T>, dim3(cuda::blocks_for(groups * kLanes, kThreads)), kThreads,
                 stream, p, step);
  });
}

}  // namespace tandem
