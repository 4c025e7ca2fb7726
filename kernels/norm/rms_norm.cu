#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/norm/rms_norm_cuda.h"

namespace tandem {
namespace {

using cuda::Pack;

constexpr int kThreads = 256;
// Packs of a row that a thread keeps in registers between the two passes: rows up to 16,384.
constexpr int kKept = 16;

/// One block a row; kPacked: four elements an access.
template <class T, bool kPacked>
__global__ void __launch_bounds__(kThreads) rms_norm_rows(const RmsNormParams p) {
  constexpr int kEach = kPacked ? 4 : 1;
  const int n = p.dim / kEach;
  const float* x = p.x + static_cast<int64_t>(blockIdx.x) * p.dim;
  T* out = static_cast<T*>(p.out) + static_cast<int64_t>(blockIdx.x) * p.dim;
  struct alignas(kEach * sizeof(float)) In {
    float at[kEach];
  };
  struct alignas(kEach * sizeof(T)) Out {
    T at[kEach];
  };
  In kept[kKept];
  float sum = 0;
  for (int i = threadIdx.x, k = 0; i < n; i += kThreads, ++k) {
    const In v = reinterpret_cast<const In*>(x)[i];
#pragma unroll
    for (int j = 0; j < kKept; ++j)
      if (j == k) kept[j] = v;
    for (int e = 0; e < kEach; ++e) sum = fmaf(v.at[e], v.at[e], sum);
  }
  const float mean = cuda::block_sum<kThreads>(sum) / static_cast<float>(p.dim);
  const float scale = 1.0f / sqrtf(mean + p.eps);
  const auto write = [&](int i, const In& v) {
    const In w = reinterpret_cast<const In*>(p.weight)[i];
    Out o;
    for (int e = 0; e < kEach; ++e) o.at[e] = cuda::from_float<T>(v.at[e] * scale * w.at[e]);
    reinterpret_cast<Out*>(out)[i] = o;
  };
#pragma unroll
  for (int j = 0; j < kKept; ++j)
    if (const int i = threadIdx.x + j * kThreads; i < n) write(i, kept[j]);
  for (int i = threadIdx.x + kKept * kThreads; i < n; i += kThreads)
    write(i, reinterpret_cast<const In*>(x)[i]);
}

}  // namespace

void rms_norm_cuda(const RmsNormParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  cuda::with_act(p.act, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    const bool packed = p.dim % 4 == 0 && cuda::packable<float>(p.dim, p.x, p.weight) &&
                        reinterpret_cast<uintptr_t>(p.out) % 16 == 0;
    const auto kernel = packed ? rms_norm_rows<T, true> : rms_norm_rows<T, false>;
    kernel<<<static_cast<unsigned>(p.n_rows), kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(p);
  });
}

}  // namespace tandem
