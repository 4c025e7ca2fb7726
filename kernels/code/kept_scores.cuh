#pragma once
// The best of the scores that a list keeps, by one block: radix selection, ties to the lowest keys.
#include "kernels/code/choose_coded.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/scan.cuh"

namespace tandem::coded {

inline constexpr int kDigitBits = 12, kBins = 1 << kDigitBits;

/// Floats as unsigned integers of the same order, none of which is 0, and back.
__device__ inline uint32_t order_of(float x) {
  const uint32_t u = __float_as_uint(x + 0.0f);  // zeros of both signs are equal
  return u ^ (static_cast<uint32_t>(static_cast<int32_t>(u) >> 31) | 0x80000000u);
}
__device__ inline float score_of(uint32_t order) {
  return __uint_as_float((order & 0x80000000u) != 0 ? order ^ 0x80000000u : ~order);
}

/// A block's shared memory.
struct SelectShared {
  int bins[kBins];
  uint32_t least, most, prefix;
  int left, equal;
};

/// The extremes of numbers that a block's threads see.
struct Extremes {
  uint32_t least = ~0u, most = 0;

  __device__ void take(uint32_t x) {
    least = min(least, x);
    most = max(most, x);
  }
  /// Sets those of the block in s, by all its threads.
  __device__ void join(SelectShared& s) const {
    __syncthreads();
    if (threadIdx.x == 0) s.least = ~0u, s.most = 0;
    __syncthreads();
    const uint32_t l = __reduce_min_sync(cuda::kAllLanes, least),
                   m = __reduce_max_sync(cuda::kAllLanes, most);
    if (threadIdx.x % cuda::kWarp == 0) atomicMin(&s.least, l), atomicMax(&s.most, m);
    __syncthreads();
  }
};

/// Scores and their keys' numbers; a block of kThreads.
template <int kThreads>
struct KeptScores {
  float* scores;
  uint32_t* numbers;
  int n;

  /// Calls f(place, score, number) for every one, by the whole block.
  template <class F>
  __device__ void each(const F& f) const {
    constexpr int kAhead = 4;  // that are read before any is used
#pragma unroll 1
    for (int first = static_cast<int>(threadIdx.x); first < n; first += kAhead * kThreads) {
      float score[kAhead];
      uint32_t number[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const int i = first + a * kThreads;
        if (i < n) score[a] = scores[i], number[a] = numbers[i];
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a)
        if (first + a * kThreads < n) f(first + a * kThreads, score[a], number[a]);
    }
  }
};

/// Numbers that are picked, those of a higher order than `least`, and of those that equal it the
/// keys up to `last`.
struct Pick {
  uint32_t least, last;

  __device__ bool takes(uint32_t order, uint32_t key) const {
    return order > least || (order == least && key <= last);
  }
};

/// The m-th largest value(score's order, number), m at most as many as are not 0, and how many that
/// equal it are among the m. Digits are those of the distance from the least, so that they spread
/// over the bins; s holds the values' extremes.
struct Threshold {
  uint32_t at;
  int n_equal;
  bool all_equal;
};
template <int kThreads, class Value>
__device__ Threshold radix_select(SelectShared& s, const KeptScores<kThreads>& kept, int m,
                                  const Value& value) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) s.prefix = 0, s.left = m;
  const uint32_t least = s.least;
  for (int high = max(32 - __clz(static_cast<int>(s.most - least)), 1); high > 0;) {
    const int low = max(high - kDigitBits, 0);
    for (int i = thread; i < kBins; i += kThreads) s.bins[i] = 0;
    __syncthreads();
    const uint64_t prefix = s.prefix;
    const int wanted = s.left;
    kept.each([&](int, float score, uint32_t number) {
      const uint32_t x = value(order_of(score), number);
      const uint64_t y = x - least;
      if (x != 0 && y >> high == prefix >> high)
        atomicAdd(&s.bins[y >> low & ((1u << (high - low)) - 1)], 1);
    });
    __syncthreads();
    // Each thread has some bins, the largest first.
    constexpr int kOwn = kBins / kThreads;
    const int first = kBins - 1 - thread * kOwn;
    int sum = 0, all;
    for (int i = 0; i < kOwn; ++i) sum += s.bins[first - i];
    int over = cuda::sum_before<kThreads>(sum, all);
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

/// The m best of the scores by value(order, number), whose extremes s holds; of equal ones those of
/// the lowest numbers.
template <int kThreads, class Value>
__device__ Pick find_threshold(SelectShared& s, const KeptScores<kThreads>& kept, int m,
                               const Value& value) {
  const Threshold best = radix_select(s, kept, m, value);
  if (best.all_equal) return {best.at, ~0u};
  // The highest of ~number are the lowest numbers, and none is 0.
  const auto of_equal = [&](uint32_t order, uint32_t number) {
    return value(order, number) == best.at ? ~number : 0u;
  };
  Extremes extremes;
  kept.each([&](int, float score, uint32_t number) {
    if (const uint32_t x = of_equal(order_of(score), number); x != 0) extremes.take(x);
  });
  extremes.join(s);
  const Threshold lowest = radix_select(s, kept, best.n_equal, of_equal);
  return {best.at, ~lowest.at};
}

}  // namespace tandem::coded
