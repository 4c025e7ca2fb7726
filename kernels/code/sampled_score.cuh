#pragma once
// The scores of a rank in a sample (key_ranks.h), by one block, of some rows at once.
#include "kernels/code/kept_scores.cuh"
#include "kernels/code/key_ranks.h"

namespace tandem::coded {

inline constexpr int kRankedBits = 8, kRankedBins = 1 << kRankedBits;

template <int kRows>
struct SampledScores {
  float sample[kRows][KeySample::kMostKeys];
  int bins[kRows][kRankedBins];
  uint32_t least[kRows], most[kRows];  // orders of scores
  uint32_t prefix[kRows];              // of the wanted order's distance from the least
  int left[kRows];                     // its rank among those with the prefix, from 1 on

  __device__ float score(int row) const { return score_of(least[row] + prefix[row]); }

  /// Finds the score of a rank, from 0 on, in each of the first `rows`, of `size` numbers. Digit by
  /// digit of the distances from the least, so that they spread over the bins.
  template <int kThreads>
  __device__ void find(int rows, int size, int rank) {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < rows) least[thread] = ~0u, most[thread] = 0, prefix[thread] = 0;
    if (thread < rows) left[thread] = rank + 1;
    __syncthreads();
    for (int h = 0; h < rows; ++h) {
      uint32_t low = ~0u, high = 0;
      for (int i = thread; i < size; i += kThreads) {
        const uint32_t order = order_of(sample[h][i]);
        low = min(low, order);
        high = max(high, order);
      }
      low = __reduce_min_sync(cuda::kAllLanes, low);
      high = __reduce_max_sync(cuda::kAllLanes, high);
      if (cuda::lane_of() == 0) atomicMin(&least[h], low), atomicMax(&most[h], high);
    }
    __syncthreads();
    uint32_t last = 0;  // the furthest distance of any row
    for (int h = 0; h < rows; ++h) last = max(last, most[h] - least[h]);
#pragma unroll 1
    while (last > 0) {
      const int low = max(32 - __clz(static_cast<int>(last)) - kRankedBits, 0);
      for (int i = thread; i < rows * kRankedBins; i += kThreads)
        bins[i / kRankedBins][i % kRankedBins] = 0;
      __syncthreads();
      for (int h = 0; h < rows; ++h) {
        const uint32_t from = least[h] + prefix[h];
        for (int i = thread; i < size; i += kThreads) {
          const uint32_t distance = order_of(sample[h][i]) - from;
          if (distance <= last) atomicAdd(&bins[h][distance >> low], 1);
        }
      }
      __syncthreads();
      if (cuda::warp_of() < rows) take_bin(cuda::warp_of(), low);
      __syncthreads();
      last = (1u << low) - 1;
    }
  }

 private:
  /// A warp finds the bin of a row: its lanes have some each, the largest first.
  __device__ void take_bin(int row, int low) {
    constexpr int kOwn = kRankedBins / cuda::kWarp;
    const int lane = cuda::lane_of(), first = kRankedBins - 1 - lane * kOwn, wanted = left[row];
    int own = 0;
    for (int i = 0; i < kOwn; ++i) own += bins[row][first - i];
    int sum = own;  // of the lanes up to this one
    for (int step = 1; step < cuda::kWarp; step *= 2) {
      const int lower = __shfl_up_sync(cuda::kAllLanes, sum, step);
      if (lane >= step) sum += lower;
    }
    int over = sum - own;
    __syncwarp();  // all have read the rank
    if (over >= wanted || sum < wanted) return;
    int bin = first;
    for (; over + bins[row][bin] < wanted; --bin) over += bins[row][bin];
    prefix[row] += static_cast<uint32_t>(bin) << low;
    left[row] = wanted - over;
  }
};

}  // namespace tandem::coded
