#pragma once
// The best of the scores that regions kept, by one block: radix selection, ties to the lowest keys.
// A warp takes a region.
#include "kernels/code/choose_coded.h"
#include "kernels/cuda/reduce.cuh"

namespace tandem::coded {

inline constexpr int kSelectThreads = 1024, kSelectWarps = kSelectThreads / cuda::kWarp;
static_assert(kSelectWarps == cuda::kWarp);
inline constexpr int kDigitBits = 12, kBins = 1 << kDigitBits;
inline constexpr int kRegionWords = kRegionKeys / 32;
static_assert(kRegionWords <= cuda::kWarp);

/// Floats as unsigned integers of the same order, none of which is 0, and back.
__device__ inline uint32_t order_of(float x) {
  const uint32_t u = __float_as_uint(x);
  return u ^ (static_cast<uint32_t>(static_cast<int32_t>(u) >> 31) | 0x80000000u);
}
__device__ inline float score_of(uint32_t order) {
  return __uint_as_float((order & 0x80000000u) != 0 ? order ^ 0x80000000u : ~order);
}

/// A block's shared memory.
struct SelectShared {
  int bins[kBins];
  int warps[kSelectWarps];
  uint32_t bits[kSelectWarps][kRegionWords];  // of a warp's region, a bit a key
  uint32_t least, most, prefix;
  int left, equal;
};

/// Numbers that are picked: those of a higher order than `least`, and of those that equal it the
/// n_equal of the lowest keys, which may be all.
struct Pick {
  uint32_t least;
  int n_equal;
  bool all_equal;
};

/// The sum of x over the lanes before this one, and over all.
__device__ inline int lanes_before(int x, int& sum) {
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  sum = x;
  for (int step = 1; step < cuda::kWarp; step *= 2) {
    const int lower = __shfl_up_sync(cuda::kAllLanes, sum, step);
    if (lane >= step) sum += lower;
  }
  const int before = sum - x;
  sum = __shfl_sync(cuda::kAllLanes, sum, cuda::kWarp - 1);
  return before;
}

/// The sum of x over the threads of the block before this one, and over all.
__device__ inline int sum_before(SelectShared& s, int x, int& all) {
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const int warp = static_cast<int>(threadIdx.x) / cuda::kWarp;
  int of_warp;
  const int in_warp = lanes_before(x, of_warp);
  __syncthreads();
  if (lane == 0) s.warps[warp] = of_warp;
  __syncthreads();
  const int before = lanes_before(s.warps[lane], all);
  return in_warp + __shfl_sync(cuda::kAllLanes, before, warp);
}

/// The kept scores of a list: `counts` of each region from its kRegionKeys-th on.
struct Regions {
  const int32_t* counts;
  const uint16_t* keys;
  int n;

  /// Calls f(place, value(place)) for a warp's numbers of a region, all lanes at once or none:
  /// place -1 where a lane has none.
  template <class Value, class F>
  __device__ void each(int region, const Value& value, const F& f) const {
    constexpr int kAhead = 2;  // values that are read before any is used
    const int count = counts[region], lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
#pragma unroll 1
    for (int i = lane; i - lane < count; i += kAhead * cuda::kWarp) {
      decltype(value(int64_t{0})) x[kAhead] = {};
      int64_t at[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        at[a] = i + a * cuda::kWarp < count ? int64_t{region} * kRegionKeys + i + a * cuda::kWarp
                                            : int64_t{-1};
        if (at[a] >= 0) x[a] = value(at[a]);
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) f(at[a], x[a]);
    }
  }
  /// The same for all regions of the block's warps.
  template <class Value, class F>
  __device__ void each(const Value& value, const F& f) const {
    for (int r = static_cast<int>(threadIdx.x) / cuda::kWarp; r < n; r += kSelectWarps)
      each(r, value, f);
  }
};

/// The m-th largest order, m at most as many as there are; order(place) is 0 for numbers that do
/// not count. Digits are those of the distance from the least order, so that they spread over the
/// bins.
template <class Order>
__device__ Pick find_threshold(SelectShared& s, const Regions& regions, int m, const Order& order) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (thread == 0) s.least = ~0u, s.most = 0, s.prefix = 0, s.left = m;
  uint32_t least = ~0u, most = 0;
  regions.each(order, [&](int64_t, uint32_t x) {
    if (x == 0) return;
    least = min(least, x);
    most = max(most, x);
  });
  least = __reduce_min_sync(cuda::kAllLanes, least);
  most = __reduce_max_sync(cuda::kAllLanes, most);
  __syncthreads();
  if (thread % cuda::kWarp == 0) atomicMin(&s.least, least), atomicMax(&s.most, most);
  __syncthreads();
  least = s.least;
  for (int high = max(32 - __clz(static_cast<int>(s.most - least)), 1); high > 0;) {
    const int low = max(high - kDigitBits, 0);
    for (int i = thread; i < kBins; i += kSelectThreads) s.bins[i] = 0;
    __syncthreads();
    const uint64_t prefix = s.prefix;
    const int wanted = s.left;
    regions.each(order, [&](int64_t, uint32_t x) {
      const uint64_t y = x - least;
      if (x != 0 && y >> high == prefix >> high)
        atomicAdd(&s.bins[y >> low & ((1u << (high - low)) - 1)], 1);
    });
    __syncthreads();
    // Each thread has some bins, the largest first.
    constexpr int kOwn = kBins / kSelectThreads;
    const int first = kBins - 1 - thread * kOwn;
    int sum = 0, all;
    for (int i = 0; i < kOwn; ++i) sum += s.bins[first - i];
    int over = sum_before(s, sum, all);
    if (over < wanted && over + sum >= wanted) {
      int bin = first;
      for (; over + s.bins[bin] < wanted; --bin) over += s.bins[bin];
      s.prefix |= static_cast<uint32_t>(bin) << low;
      s.left = wanted - over;
      s.equal = s.bins[bin];
    }
    __syncthreads();
    high = low;
  }
  return {least + s.prefix, s.left, s.left == s.equal};
}

/// The bits of a warp's region whose keys f(value(place)) is true for.
template <class Value, class F>
__device__ uint32_t* mark_keys(SelectShared& s, const Regions& regions, int region,
                               const Value& value, const F& f) {
  uint32_t* const bits = s.bits[threadIdx.x / cuda::kWarp];
  __syncwarp();
  if (threadIdx.x % cuda::kWarp < kRegionWords) bits[threadIdx.x % cuda::kWarp] = 0;
  __syncwarp();
  regions.each(region, value, [&](int64_t at, const auto& x) {
    if (at < 0 || !f(x)) return;
    const unsigned key = regions.keys[at] % kRegionKeys;
    atomicOr(&bits[key / 32], 1u << key % 32);
  });
  __syncwarp();
  return bits;
}

/// How many of a warp's bits lie before a key's.
__device__ inline int bits_before(const uint32_t* bits, unsigned key) {
  int n = __popc(bits[key / 32] & ((1u << key % 32) - 1));
  for (unsigned w = 0; w < key / 32; ++w) n += __popc(bits[w]);
  return n;
}

/// For every region how many numbers f(value(place)) is true for lie in the regions before it.
/// before: room for regions.n.
template <class Value, class F>
__device__ void count_before(SelectShared& s, const Regions& regions, int* before,
                             const Value& value, const F& f) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  for (int r = thread / cuda::kWarp; r < regions.n; r += kSelectWarps) {
    int n = 0;
    regions.each(r, value, [&](int64_t at, const auto& x) { n += at >= 0 && f(x) ? 1 : 0; });
    n = __reduce_add_sync(cuda::kAllLanes, n);
    if (thread % cuda::kWarp == 0) before[r] = n;
  }
  __syncthreads();
  const int each = (regions.n + kSelectThreads - 1) / kSelectThreads;
  const int begin = min(thread * each, regions.n), end = min(begin + each, regions.n);
  int own = 0, all;
  for (int r = begin; r < end; ++r) own += before[r];
  int sum = sum_before(s, own, all);
  for (int r = begin; r < end; ++r) {
    const int of_region = before[r];
    before[r] = sum;
    sum += of_region;
  }
  __syncthreads();
}

/// Calls take(place) for every number that is picked, by the warps of its region.
template <class Order, class Take>
__device__ void for_picked(SelectShared& s, const Regions& regions, int* before, const Pick& pick,
                           const Order& order, const Take& take) {
  const auto is_equal = [&](uint32_t x) { return x == pick.least; };
  if (!pick.all_equal) count_before(s, regions, before, order, is_equal);
  for (int r = static_cast<int>(threadIdx.x) / cuda::kWarp; r < regions.n; r += kSelectWarps) {
    const uint32_t* equal = pick.all_equal ? nullptr : mark_keys(s, regions, r, order, is_equal);
    regions.each(r, order, [&](int64_t at, uint32_t x) {
      if (at >= 0 &&
          (x > pick.least ||
           (x == pick.least &&
            (equal == nullptr ||
             before[r] + bits_before(equal, regions.keys[at] % kRegionKeys) < pick.n_equal))))
        take(at);
    });
  }
  __syncthreads();
}

}  // namespace tandem::coded
