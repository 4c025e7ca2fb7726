#include <math.h>

#include "kernels/attention/attention_cuda.h"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 128;
constexpr int kWide = 4;   // elements of a lane where they are aligned
constexpr int kAhead = 4;  // parts that are read at once

struct Parts {
  const void* o[kMaxMergeParts];
  const float* lse[kMaxMergeParts];
};

/// Elements that a lane moves at a time, as many bytes aligned.
template <class T, int kEach>
struct alignas(sizeof(T) * kEach) Piece {
  T at[kEach];
};

/// One warp a row and head. Lane i works out the weight of parts i and i + 32.
template <class Out, class Part, int kEach>
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
  for (int c = lane * kEach; c - lane * kEach < p.head_dim; c += cuda::kWarp * kEach) {
    float o[kEach] = {};
    for (int first = 0; first < p.n_parts; first += kAhead) {
      float w[kAhead];
      Piece<Part, kEach> x[kAhead] = {};
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int part = first + i;
        const float mine = part < cuda::kWarp ? weight[0] : weight[1];
        w[i] = __shfl_sync(cuda::kAllLanes, mine, part % cuda::kWarp);
        if (part >= p.n_parts) w[i] = 0;
        if (w[i] != 0 && c < p.head_dim)
          x[i] = *reinterpret_cast<const Piece<Part, kEach>*>(
              static_cast<const Part*>(parts.o[part]) + at * p.head_dim + c);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (w[i] != 0)
#pragma unroll
          for (int e = 0; e < kEach; ++e) o[e] = fmaf(w[i], cuda::to_float(x[i].at[e]), o[e]);
    }
    if (c >= p.head_dim) continue;
    Piece<Out, kEach> out;
#pragma unroll
    for (int e = 0; e < kEach; ++e) out.at[e] = cuda::from_float<Out>(o[e]);
    *reinterpret_cast<Piece<Out, kEach>*>(static_cast<Out*>(p.out) + at * p.head_dim + c) = out;
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
      const auto aligned = [](const void* to) { return reinterpret_cast<uintptr_t>(to) % 16 == 0; };
      bool wide = p.head_dim % kWide == 0 && aligned(p.out);
      for (int i = 0; i < p.n_parts; ++i) wide &= aligned(p.o[i]);
      const auto kernel = wide ? merge_rows<Out, Part, kWide> : merge_rows<Out, Part, 1>;
      kernel<<<blocks, kThreads, 0, on>>>(p, parts, n);
    });
  });
}

}  // namespace tandem
