#pragma once
// Sums over the threads before each thread of a block, in a fixed order.
#include "kernels/cuda/reduce.cuh"

namespace tandem::cuda {

/// The sum of x over the threads before this one, and over all in `all`; a block of kThreads. May
/// be called again at once.
template <int kThreads, class T>
__device__ T sum_before(T x, T& all) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ T warps[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  T sum = x;
  for (int step = 1; step < kWarp; step *= 2) {
    const T lower = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += lower;
  }
  T lower = __shfl_up_sync(kAllLanes, sum, 1);
  if (lane == 0) lower = 0;
  __syncthreads();
  if (lane == kWarp - 1) warps[warp] = sum;
  __syncthreads();
  T before = 0;
  all = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) before = all;
    all += warps[w];
  }
  return before + lower;
}

}  // namespace tandem::cuda
