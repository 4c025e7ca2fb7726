#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/norm/rms_norm_cuda.h"

namespace tandem {
namespace {

// The order of the sum follows from the width of a row alone: no choice here may depend on n_rows.
constexpr int kThreads = 512;
// Vectors of a row that a thread keeps between the two passes: rows up to 16,384.
constexpr int kMostKept = 8;

/// One block a row; kEach elements an access.
template <class T, int kEach, int kKept>
__global__ void __launch_bounds__(kThreads) rms_norm_rows(const RmsNormParams p) {
  using In = cuda::Vector<float, kEach>;
  using Out = cuda::Vector<T, kEach>;
  const int n = p.dim / kEach, first = static_cast<int>(threadIdx.x);
  const In* weight = reinterpret_cast<const In*>(p.weight);
  // A hint, so it may come before the wait. The weights come from far: a whole model was read
  // since.
  for (int i = first; i < n; i += kThreads) asm("prefetch.global.L2 [%0];" ::"l"(weight + i));
  cuda::wait_for_previous();
  const In* x = reinterpret_cast<const In*>(p.x) + static_cast<int64_t>(blockIdx.x) * n;
  Out* out = static_cast<Out*>(p.out) + static_cast<int64_t>(blockIdx.x) * n;
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
  const float inverse = 1.0f / sqrtf(mean + p.eps);
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

/// The kernel that keeps the fewest vectors a thread, up to kMostKept.
template <class T, int kEach, int kKept = 1>
auto pick(int n) {
  if constexpr (kKept < kMostKept)
    return n <= kThreads * kKept ? rms_norm_rows<T, kEach, kKept> : pick<T, kEach, 2 * kKept>(n);
  else
    return rms_norm_rows<T, kEach, kKept>;
}

}  // namespace

void rms_norm_cuda(const RmsNormParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  cuda::with_act(p.act, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    const bool packed = cuda::packable<float>(p.dim, p.x, p.weight, p.out);
    cuda::launch(packed ? pick<T, 4>(p.dim / 4) : pick<T, 1>(p.dim),
                 dim3(static_cast<unsigned>(p.n_rows)), kThreads, stream, p);
  });
}

}  // namespace tandem
