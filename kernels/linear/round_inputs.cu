#include "kernels/linear/round_inputs.h"

#include <cuda_fp8.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 8;      // inputs that a thread reads at a time
constexpr float kMost = 448;  // the largest number of e4m3

/// The largest magnitude of eight numbers in bf16.
__device__ float largest(const uint4& x) {
  const unsigned all = __vmaxu2(__vmaxu2(x.x & 0x7fff7fffu, x.y & 0x7fff7fffu),
                                __vmaxu2(x.z & 0x7fff7fffu, x.w & 0x7fff7fffu));
  return fmaxf(__uint_as_float(all << 16), __uint_as_float(all & 0xffff0000u));
}

__device__ unsigned pair(unsigned x, float scale) {
  const float low = __uint_as_float(x << 16), high = __uint_as_float(x & 0xffff0000u);
  const float2 steps{scale == 0 ? 0 : __fdiv_rn(low, scale),
                     scale == 0 ? 0 : __fdiv_rn(high, scale)};
  return __nv_cvt_float2_to_fp8x2(steps, __NV_SATFINITE, __NV_E4M3);
}

/// The maximum over a block.
__device__ float block_max(float x) {
  __shared__ float parts[kThreads / cuda::kWarp];
  x = cuda::warp_max(x);
  if (cuda::lane_of() == 0) parts[cuda::warp_of()] = x;
  __syncthreads();
  for (const float part : parts) x = fmaxf(x, part);
  return x;
}

/// A row a block.
template <bool kGroups>
__global__ void __launch_bounds__(kThreads) round_inputs(const RoundInputsParams p) {
  cuda::start_after_previous();
  const int row = static_cast<int>(blockIdx.x), n = p.in / kEach;
  const auto* const x = reinterpret_cast<const uint4*>(p.x + int64_t{row} * p.in);
  auto* const codes = reinterpret_cast<uint2*>(p.codes + int64_t{row} * p.in);
  float scale = 0;
  if (!kGroups) {
    float most = 0;
    for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads)
      most = fmaxf(most, largest(x[i]));
    scale = block_max(most) / kMost;
    if (threadIdx.x == 0) p.scales[row] = scale;
  }
  for (int first = 0; first < n; first += kThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const uint4 eight = i < n ? x[i] : uint4{0, 0, 0, 0};
    if (kGroups) {
      constexpr int kLanes = 128 / kEach;
      float most = largest(eight);
      for (int step = kLanes / 2; step > 0; step /= 2)
        most = fmaxf(most, __shfl_xor_sync(cuda::kAllLanes, most, step));
      scale = most / kMost;
      if (i < n && i % kLanes == 0) p.scales[int64_t{i / kLanes} * p.rows + row] = scale;
    }
    if (i < n)
      codes[i] = {pair(eight.x, scale) | pair(eight.y, scale) << 16,
                  pair(eight.z, scale) | pair(eight.w, scale) << 16};
  }
}

}  // namespace

void round_inputs_cuda(const RoundInputsParams& p, Stream stream) {
  if (p.rows == 0) return;
  cuda::launch(p.group == 0 ? round_inputs<false> : round_inputs<true>,
               static_cast<unsigned>(p.rows), kThreads, stream, p);
}

}  // namespace tandem
