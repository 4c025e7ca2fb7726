#pragma once
// The best of the scores that a list keeps, by one block: radix selection, ties to the lowest keys.
#include "kernels/code/choose_coded.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/scan.cuh"

namespace tandem::coded {

inline constexpr int kSelectThreads = 1024, kSelectWarps = kSelectThreads / cuda::kWarp;
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

inline constexpr uint32_t kCandidate = 1u << 31;  // in a kept score's number

/// Scores and their keys' numbers.
struct KeptScores {
  float* scores;
  uint32_t* numbers;
  int n;

  /// Calls f(place, score, number) for every one, by the whole block.
  template <class F>
  __device__ void each(const F& f) const {
    constexpr int kAhead = 4;  // that are read before any is used
#pragma unroll 1
    for (int first = static_cast<int>(threadIdx.x); first < n; first += kAhead * kSelectThreads) {
      float score[kAhead];
      uint32_t number[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const int i = min(first + a * kSelectThreads, n - 1);
        score[a] = scores[i];
        number[a] = numbers[i];
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a)
        if (first + a * kSelectThreads < n) f(first + a * kSelectThreads, score[a], number[a]);
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
/// over the bins.
struct Threshold {
  uint32_t at;
  int n_equal;
  bool all_equal;
};
template <class Value>
__device__ Threshold radix_select(SelectShared& s, const KeptScores& kept, int m,
                                  const Value& value) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (thread == 0) s.least = ~0u, s.most = 0, s.prefix = 0, s.left = m;
  uint32_t least = ~0u, most = 0;
  kept.each([&](int, float score, uint32_t number) {
    const uint32_t x = value(order_of(score), number);
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
    kept.each([&](int, float score, uint32_t number) {
      const uint32_t x = value(order_of(score), number);
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
    int over = cuda::sum_before<kSelectThreads>(sum, all);
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

/// The m best of the scores by value(order, number), of equal ones those of the lowest numbers.
template <class Value>
__device__ Pick find_threshold(SelectShared& s, const KeptScores& kept, int m, const Value& value) {
  const Threshold best = radix_select(s, kept, m, value);
  if (best.all_equal) return {best.at, ~0u};
  // The highest of ~number are the lowest numbers, and none is 0.
  const Threshold lowest =
      radix_select(s, kept, best.n_equal, [&](uint32_t order, uint32_t number) {
        return value(order, number) == best.at ? ~number : 0u;
      });
  return {best.at, ~lowest.at};
}

}  // namespace tandem::coded
