#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/lsh/key_row.cuh"
#include "kernels/lsh/lsh_cuda.h"

namespace tandem {
namespace {

constexpr int kThreads = 1024;

/// Block (part, KV head): strips of tokens side by side, a thread a channel.
template <class T>
__global__ void __launch_bounds__(kThreads) sum_keys(const MeanKeysParams p) {
  __shared__ double sums[kThreads];
  cuda::wait_for_previous();
  const int part = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  const int each = (p.tokens.end - p.tokens.begin + kMeanParts - 1) / kMeanParts;
  const int begin = p.tokens.begin + part * each, end = min(begin + each, p.tokens.end);
  const int thread = static_cast<int>(threadIdx.x);
  const int strips = kThreads / p.d, strip = thread / p.d, c = thread % p.d;
  double sum = 0;
  if (strip < strips) {
#pragma unroll 8
    for (int t = begin + strip; t < end; t += strips)
      sum += cuda::to_float(key_row<T>(p.k_pool, p.pages, t, p.n_kv_heads, kv_head, p.d)[c]);
  }
  sums[thread] = sum;
  __syncthreads();
  if (strip > 0) return;
  for (int s = 1; s < strips; ++s) sum += sums[s * p.d + c];
  p.sums[(int64_t{part} * p.n_kv_heads + kv_head) * p.d + c] = sum;
}

/// Block KV head, a thread a channel.
__global__ void __launch_bounds__(kThreads) divide_sums(const MeanKeysParams p) {
  cuda::wait_for_previous();
  const int at = static_cast<int>(blockIdx.x) * p.d + static_cast<int>(threadIdx.x);
  double sum = 0;
#pragma unroll 8
  for (int part = 0; part < kMeanParts; ++part)
    sum += p.sums[int64_t{part} * p.n_kv_heads * p.d + at];
  p.mean[at] = static_cast<float>(sum / (p.tokens.end - p.tokens.begin));
}

}  // namespace

void mean_keys_cuda(const MeanKeysParams& p, Stream stream) {
  const auto heads = static_cast<unsigned>(p.n_kv_heads);
  cuda::with_act(p.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    cuda::launch(sum_keys<T>, dim3(kMeanParts, heads), kThreads, stream, p);
  });
  cuda::launch(divide_sums, dim3(heads), p.d, stream, p);
}

}  // namespace tandem
