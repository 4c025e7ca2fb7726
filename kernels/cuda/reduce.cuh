#pragma once
// Reductions over warps and blocks, in a fixed order: the same bits on every run.

namespace tandem::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

/// Of this thread, in a block of one dimension.
__device__ inline int lane_of() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int warp_of() { return static_cast<int>(threadIdx.x) / kWarp; }

__device__ inline float warp_sum(float x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

__device__ inline float warp_max(float x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

/// Sum over a block of kThreads; every thread gets it. May be called again at once.
template <int kThreads>
__device__ float block_sum(float x) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ float parts[kWarps];
  x = warp_sum(x);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = x;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += parts[w];
  return sum;
}

}  // namespace tandem::cuda
