#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/norm/rms_norm.h"

namespace tandem {
namespace {

/// One block a row; kEach elements an access. A thread keeps kKept vectors between the two passes
/// and reads the rest again.
template <class T, int kEach, int kThreads, int kKept>
__global__ void __launch_bounds__(kThreads) rms_norm_rows(const RmsNormParams p) {
  using In = cuda::Vector<float, kEach>;
  using Out = cuda::Vector<T, kEach>;
  const int n = p.dim / kEach, first = static_cast<int>(threadIdx.x);
  const In* weight = reinterpret_cast<const In*>(p.weight);
  // A hint, so it may come before the wait. The weights lie far: a whole model was read since.
  for (int i = first; blockIdx.x == 0 && i < n; i += kThreads)
    asm("prefetch.global.L2 [%0];" ::"l"(weight + i));
  cuda::start_after_previous();
  Out* out = static_cast<Out*>(p.out) + static_cast<int64_t>(blockIdx.x) * n;
  const int row = p.rows == nullptr ? static_cast<int>(blockIdx.x) : p.rows[blockIdx.x];
  if (p.rows != nullptr && (row < 0 || row >= p.n_x)) {
    Out nothing;
#pragma unroll
    for (int e = 0; e < kEach; ++e) nothing.at[e] = cuda::from_float<T>(cuda::quiet_nan());
    for (int i = first; i < n; i += kThreads) out[i] = nothing;
    return;
  }
  const In* x = reinterpret_cast<const In*>(p.x) + static_cast<int64_t>(row) * n;
  In kept[kKept], scale[kKept];
#pragma unroll
  for (int k = 0; k < kKept; ++k)
    if (const int i = first + k * kThreads; i < n) kept[k] = x[i];
#pragma unroll
  for (int k = 0; k < kKept; ++k)
    if (const int i = first + k * kThreads; i < n) scale[k] = weight[i];
  float sum = 0;
  const auto add = [&](const In& v) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) sum = fmaf(v.at[e], v.at[e], sum);
  };
#pragma unroll
  for (int k = 0; k < kKept; ++k)
    if (first + k * kThreads < n) add(kept[k]);
  for (int i = first + kKept * kThreads; i < n; i += kThreads) add(x[i]);
  const float mean = cuda::block_sum<kThreads>(sum) / static_cast<float>(p.dim);
  const float inverse = p.scale / sqrtf(mean + p.eps);
  const auto write = [&](int i, const In& v, const In& w) {
    Out o;
#pragma unroll
    for (int e = 0; e < kEach; ++e) o.at[e] = cuda::from_float<T>(v.at[e] * inverse * w.at[e]);
    out[i] = o;
  };
#pragma unroll
  for (int k = 0; k < kKept; ++k)
    if (const int i = first + k * kThreads; i < n) write(i, kept[k], scale[k]);
  for (int i = first + kKept * kThreads; i < n; i += kThreads) write(i, x[i], weight[i]);
}

/// One block a row, of what has no weight or is added.
template <class T, int kEach>
__global__ void __launch_bounds__(256) scaled_rows(const RmsNormParams p) {
  using In = cuda::Vector<float, kEach>;
  using Out = cuda::Vector<T, kEach>;
  cuda::start_after_previous();
  const int n = p.dim / kEach, first = static_cast<int>(threadIdx.x);
  const In* weight = reinterpret_cast<const In*>(p.weight);
  const In* x = reinterpret_cast<const In*>(p.x) + static_cast<int64_t>(blockIdx.x) * n;
  Out* out = static_cast<Out*>(p.out) + static_cast<int64_t>(blockIdx.x) * n;
  float scale = p.scale;
  if (weight != nullptr) {
    float sum = 0;
    for (int i = first; i < n; i += 256) {
      const In v = x[i];
#pragma unroll
      for (int e = 0; e < kEach; ++e) sum = fmaf(v.at[e], v.at[e], sum);
    }
    scale /= sqrtf(cuda::block_sum<256>(sum) / static_cast<float>(p.dim) + p.eps);
  }
  for (int i = first; i < n; i += 256) {
    const In v = x[i];
    Out o = {};
    if (p.adds) o = out[i];
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const float y = v.at[e] * scale * (weight != nullptr ? weight[i].at[e] : 1.0f);
      o.at[e] = cuda::from_float<T>(p.adds ? cuda::to_float(o.at[e]) + y : y);
    }
    out[i] = o;
  }
}

struct Launch {
  void (*kernel)(RmsNormParams);
  int threads;
};

/// The kernel for rows of n vectors. The order of the sum follows from the width of a row alone:
/// the choice must not depend on the number of rows.
template <class T, int kEach>
Launch pick(int n) {
  if (n <= 256) return {rms_norm_rows<T, kEach, 256, 1>, 256};
  if (n <= 512) return {rms_norm_rows<T, kEach, 256, 2>, 256};
  if (n <= 1024) return {rms_norm_rows<T, kEach, 256, 4>, 256};
  if (n <= 2048) return {rms_norm_rows<T, kEach, 512, 4>, 512};
  return {rms_norm_rows<T, kEach, 512, 8>, 512};
}

}  // namespace

void rms_norm_cuda(const RmsNormParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  cuda::with_act(p.act, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    const bool packed = cuda::packable<float>(p.dim, p.x, p.weight, p.out);
    Launch l = packed ? pick<T, 4>(p.dim / 4) : pick<T, 1>(p.dim);
    if (p.weight == nullptr || p.adds) l = {packed ? scaled_rows<T, 4> : scaled_rows<T, 1>, 256};
    cuda::launch(l.kernel, dim3(static_cast<unsigned>(p.n_rows)), l.threads, stream, p);
  });
}

}  // namespace tandem
