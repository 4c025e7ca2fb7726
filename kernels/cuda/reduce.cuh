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

/// Combines a number of each warp of a block of kThreads; every thread gets the result. May be
/// called again at once.
template <int kThreads, class Combine>
__device__ float across_warps(float x, float start, const Combine& combine) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ float parts[kWarps];
  __syncthreads();
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = x;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) start = combine(start, parts[w]);
  return start;
}

template <int kThreads>
__device__ float block_sum(float x) {
  return across_warps<kThreads>(warp_sum(x), 0, [](float a, float b) { return a + b; });
}

/// The maximum of numbers that are not negative.
template <int kThreads>
__device__ float block_max(float x) {
  return across_warps<kThreads>(warp_max(x), 0, [](float a, float b) { return fmaxf(a, b); });
}

}  // namespace tandem::cuda
