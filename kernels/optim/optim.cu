#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/optim/optim.h"

namespace tandem {
namespace {

constexpr int kThreads = 256, kEach = 4;
using F = cuda::Vector<float, kEach>;

/// A block of the grid for a block of the vector: chains of 64 terms a thread, added in f64.
__global__ void __launch_bounds__(kThreads) square_sum_blocks(const SquareSumParams p) {
  __shared__ double parts[kThreads];
  cuda::start_after_previous();
  const int64_t begin = int64_t{blockIdx.x} * kOptimBlock;
  const int64_t end = begin + kOptimBlock < p.n ? begin + kOptimBlock : p.n;
  float sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) sum = fmaf(p.x[i], p.x[i], sum);
  parts[threadIdx.x] = double{sum};
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) parts[threadIdx.x] += parts[threadIdx.x + half];
  }
  if (threadIdx.x == 0) p.sums[blockIdx.x] = parts[0];
}

__device__ void adamw(const AdamWStep& by, float g, float base, float& w, float& m, float& v) {
  g *= by.gradient_scale;
  m = fmaf(by.beta1, m, (1.0f - by.beta1) * g);
  v = fmaf(by.beta2, v, (1.0f - by.beta2) * g * g);
  const float update = m * by.unbias1 / (sqrtf(v * by.unbias2) + by.epsilon);
  w -= by.learning_rate * fmaf(by.weight_decay, w - base, update);
}

__global__ void __launch_bounds__(kThreads) adamw_elements(const AdamWParams p) {
  cuda::start_after_previous();
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEach;
  if (i + kEach <= p.n) {
    const F g = *reinterpret_cast<const F*>(p.gradient + i);
    F w = *reinterpret_cast<const F*>(p.weights + i), m = *reinterpret_cast<const F*>(p.first + i);
    F v = *reinterpret_cast<const F*>(p.second + i), base = {};
    if (p.base != nullptr) base = *reinterpret_cast<const F*>(p.base + i);
#pragma unroll
    for (int e = 0; e < kEach; ++e) adamw(p.by, g.at[e], base.at[e], w.at[e], m.at[e], v.at[e]);
    *reinterpret_cast<F*>(p.weights + i) = w;
    *reinterpret_cast<F*>(p.first + i) = m;
    *reinterpret_cast<F*>(p.second + i) = v;
    return;
  }
  for (int64_t j = i; j < p.n; ++j)
    adamw(p.by, p.gradient[j], p.base == nullptr ? 0.0f : p.base[j], p.weights[j], p.first[j],
          p.second[j]);
}

}  // namespace

void square_sum_cuda(const SquareSumParams& p, Stream stream) {
  if (p.n == 0) return;
  cuda::launch(square_sum_blocks, dim3(cuda::blocks_for(p.n, kOptimBlock)), kThreads, stream, p);
}

void adamw_cuda(const AdamWParams& p, Stream stream) {
  if (p.n == 0) return;
  cuda::launch(adamw_elements, dim3(cuda::blocks_for(p.n, kThreads * kEach)), kThreads, stream, p);
}

}  // namespace tandem
