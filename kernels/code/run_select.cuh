#pragma once
// The best of numbers that lie in runs of different lengths, by one block: radix selection, ties to
// the first ones. A warp takes a run.
#include "kernels/code/tail_means.h"
#include "kernels/cuda/reduce.cuh"

namespace tandem::coded {

inline constexpr int kSelectThreads = 1024, kSelectWarps = kSelectThreads / cuda::kWarp;
inline constexpr int kDigitBits = 11, kBins = 1 << kDigitBits;

/// A block's shared memory.
struct RunSelect {
  int bins[kBins];
  int2 warps[kSelectWarps];
  uint32_t prefix;
  int left;
};

/// Floats as unsigned integers of the same order, and back. Zeros of both signs are equal numbers:
/// scores are sums, which are never -0.
__device__ inline uint32_t order_of(float x) {
  const uint32_t u = __float_as_uint(x);
  return u ^ (static_cast<uint32_t>(static_cast<int32_t>(u) >> 31) | 0x80000000u);
}
__device__ inline float score_of(uint32_t order) {
  return __uint_as_float((order & 0x80000000u) != 0 ? order ^ 0x80000000u : ~order);
}

/// The sums of x over the threads before this one, and over all.
__device__ inline int2 sums_before(RunSelect& s, int2 x, int2& all) {
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const int warp = static_cast<int>(threadIdx.x) / cuda::kWarp;
  int2 sum = x;
  for (int step = 1; step < cuda::kWarp; step *= 2) {
    const int a = __shfl_up_sync(cuda::kAllLanes, sum.x, step),
              b = __shfl_up_sync(cuda::kAllLanes, sum.y, step);
    if (lane >= step) sum.x += a, sum.y += b;
  }
  __syncthreads();
  if (lane == cuda::kWarp - 1) s.warps[warp] = sum;
  __syncthreads();
  int2 before{sum.x - x.x, sum.y - x.y};
  all = {0, 0};
  for (int w = 0; w < kSelectWarps; ++w) {
    if (w < warp) before.x += s.warps[w].x, before.y += s.warps[w].y;
    all.x += s.warps[w].x, all.y += s.warps[w].y;
  }
  return before;
}

/// The sum of a number over the block.
__device__ inline int block_count(RunSelect& s, int x) {
  int2 all;
  (void)sums_before(s, {x, 0}, all);
  return all.x;
}

/// Which numbers are picked: those of a higher order than `least`, and of those that equal it the
/// first n_equal.
struct RunPick {
  uint32_t least;
  int n_equal;
};

/// Calls f(place) for every number of a warp's runs.
template <class F>
__device__ void for_run(const int32_t* counts, int run, const F& f) {
  for (int i = static_cast<int>(threadIdx.x) % cuda::kWarp; i < counts[run]; i += cuda::kWarp)
    f(int64_t{run} * kMeanKeys + i);
}

/// Calls take(place, rank among the picked, whether it is picked) for every number of a run, by a
/// warp; rank counts from the first run's on.
template <class Order, class Take>
__device__ void pick_run(const int2* before, const int32_t* counts, int run, const RunPick& pick,
                         const Order& order, const Take& take) {
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp, n = counts[run];
  const unsigned smaller = (1u << lane) - 1;
  int above = before[run].x, equal = before[run].y;
  for (int first = 0; first < n; first += cuda::kWarp) {
    const int64_t at = int64_t{run} * kMeanKeys + first + lane;
    const bool exists = first + lane < n;
    const uint32_t x = exists ? order(at) : 0;
    const unsigned is_above = __ballot_sync(cuda::kAllLanes, exists && x > pick.least),
                   is_equal = __ballot_sync(cuda::kAllLanes, exists && x == pick.least);
    const int mine_above = above + __popc(is_above & smaller),
              mine_equal = equal + __popc(is_equal & smaller);
    const bool picked =
        exists && (x > pick.least || (x == pick.least && mine_equal < pick.n_equal));
    if (exists) take(at, mine_above + min(mine_equal, pick.n_equal), picked);
    above += __popc(is_above);
    equal += __popc(is_equal);
  }
}

/// The same for all runs.
template <class Order, class Take>
__device__ void for_picked(const int2* before, const int32_t* counts, int n_runs,
                           const RunPick& pick, const Order& order, const Take& take) {
  for (int r = static_cast<int>(threadIdx.x) / cuda::kWarp; r < n_runs; r += kSelectWarps)
    pick_run(before, counts, r, pick, order, take);
}

/// The m-th largest order, m at most as many as there are. `before` gets for every run how many of
/// the runs before it are above and at it.
template <class Order>
__device__ RunPick find_threshold(RunSelect& s, int2* before, const int32_t* counts, int n_runs,
                                  int m, const Order& order) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / cuda::kWarp;
  if (thread == 0) s.prefix = 0, s.left = m;
  for (int high = 32; high > 0;) {
    const int low = max(high - kDigitBits, 0);
    for (int i = thread; i < kBins; i += kSelectThreads) s.bins[i] = 0;
    __syncthreads();
    const uint32_t prefix = s.prefix, known = high == 32 ? 0 : ~0u << high;
    for (int r = warp; r < n_runs; r += kSelectWarps)
      for_run(counts, r, [&](int64_t at) {
        const uint32_t x = order(at);
        if ((x & known) == prefix) atomicAdd(&s.bins[x >> low & ((1u << (high - low)) - 1)], 1);
      });
    __syncthreads();
    // Each thread has two bins, the largest first.
    constexpr int kOwn = kBins / kSelectThreads;
    const int first = kBins - 1 - thread * kOwn, wanted = s.left;
    int sum = 0;
    for (int i = 0; i < kOwn; ++i) sum += s.bins[first - i];
    int2 all;
    int over = sums_before(s, {sum, 0}, all).x;
    if (over < wanted && over + sum >= wanted) {
      int bin = first;
      for (; over + s.bins[bin] < wanted; --bin) over += s.bins[bin];
      s.prefix |= static_cast<uint32_t>(bin) << low;
      s.left = wanted - over;
    }
    __syncthreads();
    high = low;
  }
  const RunPick pick{s.prefix, s.left};
  for (int r = warp; r < n_runs; r += kSelectWarps) {
    int above = 0, equal = 0;
    for_run(counts, r, [&](int64_t at) {
      const uint32_t x = order(at);
      above += x > pick.least ? 1 : 0;
      equal += x == pick.least ? 1 : 0;
    });
    above = __reduce_add_sync(cuda::kAllLanes, above);
    equal = __reduce_add_sync(cuda::kAllLanes, equal);
    if (thread % cuda::kWarp == 0) before[r] = {above, equal};
  }
  __syncthreads();
  // Sums before each run, a stretch of runs a thread.
  const int each = (n_runs + kSelectThreads - 1) / kSelectThreads;
  const int begin = min(thread * each, n_runs), end = min(begin + each, n_runs);
  int2 own{0, 0}, all;
  for (int r = begin; r < end; ++r) own.x += before[r].x, own.y += before[r].y;
  int2 sum = sums_before(s, own, all);
  for (int r = begin; r < end; ++r) {
    const int2 of_run = before[r];
    before[r] = sum;
    sum.x += of_run.x, sum.y += of_run.y;
  }
  __syncthreads();
  return pick;
}

}  // namespace tandem::coded
