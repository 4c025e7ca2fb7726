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
  T below = __shfl_up_sync(kAllLanes, sum, 1);
  if (lane == 0) below = 0;
  __syncthreads();
  if (lane == kWarp - 1) warps[warp] = sum;
  __syncthreads();
  T upto = lane < kWarps ? warps[lane] : T(0);  // a lane a warp
  for (int step = 1; step < kWarps; step *= 2) {
    const T lower = __shfl_up_sync(kAllLanes, upto, step);
    if (lane >= step) upto += lower;
  }
  all = __shfl_sync(kAllLanes, upto, kWarps - 1);
  const T before = __shfl_sync(kAllLanes, upto, warp > 0 ? warp - 1 : 0);
  return warp > 0 ? before + below : below;
}

}  // namespace tandem::cuda
