#include <math.h>

#include "kernels/attention/attention_cuda.h"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 128;

struct Parts {
  const void* o[kMaxMergeParts];
  const float* lse[kMaxMergeParts];
};

/// One warp a row and head. Lane i works out the weight of parts i and i + 32.
template <class Out, class Part>
__global__ void __launch_bounds__(kThreads)
    merge_rows(const MergeStatesParams p, const __grid_constant__ Parts parts, int64_t n) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / cuda::kWarp;
  if (at >= n) return;
  const int lane = threadIdx.x % cuda::kWarp;
  static_assert(kMaxMergeParts == 2 * cuda::kWarp);
  float own[2], most = -INFINITY;
  for (int i = 0; i < 2; ++i) {
    const int part = lane + i * cuda::kWarp;
    own[i] = part < p.n_parts ? parts.lse[part][at] : -INFINITY;
    most = fmaxf(most, own[i]);
  }
  most = cuda::warp_max(most);
  double sum = 0;
  for (int i = 0; i < 2; ++i)
    sum += own[i] == -INFINITY ? 0.0 : exp(static_cast<double>(own[i]) - most);
  for (int step = cuda::kWarp / 2; step > 0; step /= 2)
    sum += __shfl_xor_sync(cuda::kAllLanes, sum, step);
  const double lse = most == -INFINITY ? -INFINITY : most + log(sum);
  float weight[2];
  for (int i = 0; i < 2; ++i)
    weight[i] =
        own[i] == -INFINITY ? 0.0f : static_cast<float>(exp(static_cast<double>(own[i]) - lse));
  // All lanes read a part's weight before any element of out is written: out may alias a part.
  for (int first = 0; first < p.head_dim; first += cuda::kWarp) {
    const int c = first + lane;
    float o = 0;
    for (int i = 0; i < p.n_parts; ++i) {
      const float mine = i < cuda::kWarp ? weight[0] : weight[1];
      const float w = __shfl_sync(cuda::kAllLanes, mine, i % cuda::kWarp);
      if (w != 0 && c < p.head_dim)
        o = fmaf(w, cuda::to_float(static_cast<const Part*>(parts.o[i])[at * p.head_dim + c]), o);
    }
    if (c < p.head_dim) static_cast<Out*>(p.out)[at * p.head_dim + c] = cuda::from_float<Out>(o);
  }
  if (lane == 0 && p.lse != nullptr) p.lse[at] = static_cast<float>(lse);
}

}  // namespace

void merge_states_cuda(const MergeStatesParams& p, int n_rows, Stream stream) {
  const int64_t n = static_cast<int64_t>(n_rows) * p.n_heads;
  if (n == 0) return;
  Parts parts{};
  for (int i = 0; i < p.n_parts; ++i) {
    parts.o[i] = p.o[i];
    parts.lse[i] = p.part_lse[i];
  }
  const auto blocks = static_cast<unsigned>((n * cuda::kWarp + kThreads - 1) / kThreads);
  const auto on = static_cast<cudaStream_t>(stream.handle);
  cuda::with_act(p.out_dtype, [&](auto* out) {
    cuda::with_act(p.part_dtype, [&](auto* part) {
      using Out = std::remove_pointer_t<decltype(out)>;
      using Part = std::remove_pointer_t<decltype(part)>;
      merge_rows<Out, Part><<<blocks, kThreads, 0, on>>>(p, parts, n);
    });
  });
}

}  // namespace tandem
