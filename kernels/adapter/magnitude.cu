#include "kernels/adapter/magnitude.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 4;  // of a thread, which reads scales and bias once for them
constexpr unsigned kMaxGridRows = 65535;

/// kEach columns a thread and access; blocks along y share the rows.
template <class In, class Out, int kEach>
__global__ void __launch_bounds__(kThreads) magnitude_scale_rows(const MagnitudeScaleParams p) {
  using F = cuda::Vector<float, kEach>;
  cuda::start_after_previous();
  const int c = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * kEach;
  if (c >= p.n) return;
  const F scale = *reinterpret_cast<const F*>(p.scale + c);
  F rest = {};
  if (p.bias != nullptr) {
    rest = *reinterpret_cast<const F*>(p.bias + c);
#pragma unroll
    for (int e = 0; e < kEach; ++e) rest.at[e] *= 1.0f - scale.at[e];
  }
  for (int64_t r = blockIdx.y; r < p.n_rows; r += gridDim.y) {
    const int64_t at = r * p.width + p.first + c;
    const auto in =
        *reinterpret_cast<const cuda::Vector<In, kEach>*>(static_cast<const In*>(p.in) + at);
    cuda::Vector<Out, kEach> out;
    F y;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      y.at[e] = fmaf(scale.at[e], cuda::to_float(in.at[e]), rest.at[e]);
      out.at[e] = cuda::from_float<Out>(y.at[e]);
    }
    *reinterpret_cast<cuda::Vector<Out, kEach>*>(static_cast<Out*>(p.out) + at) = out;
    if (p.sum == nullptr) continue;
    F sum = *reinterpret_cast<const F*>(p.sum + at);
#pragma unroll
    for (int e = 0; e < kEach; ++e) sum.at[e] += y.at[e];
    *reinterpret_cast<F*>(p.sum + at) = sum;
  }
}

template <class In, class Out>
void run(const MagnitudeScaleParams& p, Stream stream) {
  constexpr int kEach = 16 / sizeof(Out);
  const bool packed = p.width % kEach == 0 && p.first % kEach == 0 && p.n % kEach == 0 &&
                      cuda::packable<Out>(0, p.out, p.in, p.scale, p.bias, p.sum);
  const unsigned rows = cuda::blocks_for(p.n_rows, kRows);
  const dim3 grid(cuda::blocks_for(packed ? p.n / kEach : p.n, kThreads),
                  rows < kMaxGridRows ? rows : kMaxGridRows);
  cuda::launch(packed ? magnitude_scale_rows<In, Out, kEach> : magnitude_scale_rows<In, Out, 1>,
               grid, kThreads, stream, p);
}

constexpr int kColumns = cuda::kWarp, kLanes = 16;  // of a block; lanes share the rows

template <class T>
__global__ void __launch_bounds__(kColumns* kLanes)
    magnitude_gradient_block(const MagnitudeGradientParams p) {
  __shared__ float parts[kLanes][kColumns];
  cuda::start_after_previous();
  const int in_block = static_cast<int>(threadIdx.x) % kColumns;
  const int lane = static_cast<int>(threadIdx.x) / kColumns;
  const int64_t c = int64_t{blockIdx.x} * kColumns + in_block;
  float sum = 0;
  if (c < p.n) {
    const float bias = p.bias == nullptr ? 0.0f : p.bias[c];
    const T* const dy = static_cast<const T*>(p.dy) + p.first + c;
    const T* const y = static_cast<const T*>(p.y) + p.first + c;
#pragma unroll 4
    for (int64_t r = lane; r < p.n_rows; r += kLanes)
      sum = fmaf(cuda::to_float(dy[r * p.width]), cuda::to_float(y[r * p.width]) - bias, sum);
  }
  parts[lane][in_block] = sum;
  __syncthreads();
  if (lane != 0 || c >= p.n || p.magnitude[c] == 0) return;
  for (int l = 1; l < kLanes; ++l) sum += parts[l][in_block];
  p.sums[c] += sum / p.magnitude[c];
}

}  // namespace

void magnitude_scale_cuda(const MagnitudeScaleParams& p, Stream stream) {
  if (p.n_rows == 0 || p.n == 0) return;
  if (p.act == DType::f32) return run<float, float>(p, stream);
  if (p.in_type == DType::f32) return run<float, __nv_bfloat16>(p, stream);
  run<__nv_bfloat16, __nv_bfloat16>(p, stream);
}

void magnitude_gradient_cuda(const MagnitudeGradientParams& p, Stream stream) {
  if (p.n_rows == 0 || p.n == 0) return;
  cuda::with_act(p.act, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    cuda::launch(magnitude_gradient_block<T>, dim3(cuda::blocks_for(p.n, kColumns)),
                 kColumns * kLanes, stream, p);
  });
}

}  // namespace tandem
