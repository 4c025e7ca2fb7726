#include "base/philox.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/scan.cuh"
#include "kernels/gather/draw_keys.h"
#include "kernels/gather/list_rows.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / cuda::kWarp;

__device__ float block_max(float x, float* warps) {
  x = cuda::warp_max(x);
  __syncthreads();
  if (threadIdx.x % cuda::kWarp == 0) warps[threadIdx.x / cuda::kWarp] = x;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) x = fmaxf(x, warps[w]);
  return x;
}

/// The first token whose cumulative weight is beyond `at`.
__device__ int token_at(const double* cumulative, int n, double at) {
  int low = 0, high = n;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (cumulative[middle] <= at)
      low = middle + 1;
    else
      high = middle;
  }
  return min(low, n - 1);
}

/// A block a list.
__global__ void __launch_bounds__(kThreads) draw_keys(const DrawKeysParams p) {
  __shared__ float tops[kWarps];
  cuda::wait_for_previous();
  const int64_t list = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x), n = p.n[list], m = p.m[list];
  if (n == 0) {
    if (thread == 0) p.count[list] = 0;
    return;
  }
  const float* scores = p.scores + list * p.score_stride;
  double* const cumulative = p.cumulative + list * p.score_stride;
  int32_t* const drawn = p.drawn + list * p.score_stride;
  float top = -INFINITY;
  for (int t = thread; t < n; t += kThreads) top = fmaxf(top, scores[t]);
  top = block_max(top, tops);
  double sum = 0;
  for (int begin = 0; begin < n; begin += kThreads) {
    const int t = begin + thread;
    const double weight = t < n ? exp(double{scores[t]} - double{top}) : 0;
    double all;
    const double before = sum + cuda::sum_before<kThreads>(weight, all);
    if (t < n) cumulative[t] = before + weight, drawn[t] = 0;
    sum += all;
  }
  __syncthreads();
  const ChoosingRow row(p.choosing, static_cast<int>(list / p.n_heads));
  const uint64_t seed = p.seed ^ static_cast<uint64_t>(p.choosing.pos[row.number]) << 20;
  const auto stream = static_cast<uint32_t>(p.layer * p.n_heads + list % p.n_heads);
  for (int i = thread; i < m; i += kThreads) {
    const PhiloxBlock block = philox_block(
        {{stream, static_cast<uint32_t>(i / 2), static_cast<uint32_t>(DrawPurpose::data), 0}},
        seed);
    const double uniform =
        i % 2 == 0 ? uniform_of(block.w[0], block.w[1]) : uniform_of(block.w[2], block.w[3]);
    atomicAdd(drawn + token_at(cumulative, n, uniform * sum), 1);
  }
  __syncthreads();
  const double lse = double{top} + log(sum);
  int n_ids = 0;
  for (int begin = 0; begin < n; begin += kThreads) {
    const int t = begin + thread, times = t < n ? drawn[t] : 0;
    int all;
    const int place = n_ids + cuda::sum_before<kThreads>(times > 0 ? 1 : 0, all);
    if (times > 0) {
      p.ids[list * p.id_stride + place] = t;
      p.bias[list * p.id_stride + place] =
          static_cast<float>(lse + log(static_cast<double>(times) / m) - double{scores[t]});
    }
    n_ids += all;
  }
  if (thread == 0) p.count[list] = n_ids;
}

}  // namespace

void draw_keys_cuda(const DrawKeysParams& p, Stream stream) {
  const int lists = (p.choosing.rows.end - p.choosing.rows.begin) * p.n_heads;
  if (lists > 0) cuda::launch(draw_keys, dim3(static_cast<unsigned>(lists)), kThreads, stream, p);
}

}  // namespace tandem
