#pragma once
// The best of the scores that a list keeps, by one block: radix selection, ties to the lowest keys.
#include "kernels/code/choose_coded.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/scan.cuh"

namespace tandem::coded {

inline constexpr int kDigitBits = 12, kBins = 1 << kDigitBits;
inline constexpr int kFew = 256;  // that are compared in pairs

/// Floats as unsigned integers of the same order, none of which is 0, and back.
__device__ inline uint32_t order_of(float x) {
  const uint32_t u = __float_as_uint(x + 0.0f);  // zeros of both signs are equal
  return u ^ (static_cast<uint32_t>(static_cast<int32_t>(u) >> 31) | 0x80000000u);
}
__device__ inline float score_of(uint32_t order) {
  return __uint_as_float((order & 0x80000000u) != 0 ? order ^ 0x80000000u : ~order);
}

/// The numbers of a higher order than `least`, and of those that equal it the keys up to `last`.
struct Pick {
  uint32_t least, last;

  __device__ bool takes(uint32_t order, uint32_t key) const {
    return order > least || (order == least && key <= last);
  }
};

/// A block's shared memory.
struct SelectShared {
  int bins[kBins];
  uint32_t least, most;  // of all orders
  uint32_t prefix;       // where the bin that holds the threshold begins
  int left, in_bin;      // how many of it are picked, and has it
  int n_few;
  uint2 few[kFew];  // orders and keys
  Pick pick;
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

/// Orders of scores and their keys, those of near keys side by side; a block of kThreads. Accesses
/// differ between memories, and so do the loops that suit them.
template <int kThreads, bool kInShared>
struct KeptScores {
  uint32_t *orders, *keys;
  int n;

  /// Calls f(place, order, key) for every one, by the whole block.
  template <class F>
  __device__ void each(const F& f) const {
    const int thread = static_cast<int>(threadIdx.x);
    if constexpr (kInShared) {
      // A thread has neighbours, so that a warp's sums by runs are of several runs; an odd number
      // of them, so that lanes use different banks.
      const int own = (n + kThreads - 1) / kThreads | 1;
      const int begin = min(thread * own, n), end = min(begin + own, n);
#pragma unroll 2
      for (int i = begin; i < end; ++i) f(i, orders[i], keys[i]);
    } else {
      constexpr int kAhead = 2;  // that are read before any is used
      int i = thread;
#pragma unroll 1
      for (; i + (kAhead - 1) * kThreads < n; i += kAhead * kThreads) {
        uint32_t order[kAhead], key[kAhead];
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
          order[a] = orders[i + a * kThreads];
          key[a] = keys[i + a * kThreads];
        }
#pragma unroll
        for (int a = 0; a < kAhead; ++a) f(i + a * kThreads, order[a], key[a]);
      }
#pragma unroll 1
      for (; i < n; i += kThreads) f(i, orders[i], keys[i]);
    }
  }
};

/// Finds the bin that holds the s.left-th largest place(order, key), none of which lies more than
/// `last` above s.prefix, digit by digit until it has few; by the whole block. Returns the width of
/// that bin less one: 0 where all in it are equal.
template <int kThreads, bool kInShared, class Place>
__device__ uint32_t narrow(SelectShared& s, const KeptScores<kThreads, kInShared>& kept,
                           uint32_t last, const Place& place) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
  do {
    const int low = max(32 - __clz(static_cast<int>(last)) - kDigitBits, 0);
    for (int i = thread; i < kBins; i += kThreads) s.bins[i] = 0;
    __syncthreads();
    const uint32_t prefix = s.prefix;
    const int wanted = s.left;
    kept.each([&](int, uint32_t order, uint32_t key) {
      const uint32_t y = place(order, key) - prefix;
      if (y <= last) atomicAdd(&s.bins[y >> low], 1);
    });
    __syncthreads();
    // Each thread has some bins, the largest first.
    constexpr int kOwn = kBins / kThreads;
    const int first = kBins - 1 - thread * kOwn;
    int sum = 0, all;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) sum += s.bins[first - i];
    int over = cuda::sum_before<kThreads>(sum, all);
    if (over < wanted && over + sum >= wanted) {
      int bin = first;
      for (; over + s.bins[bin] < wanted; --bin) over += s.bins[bin];
      s.prefix = prefix + (static_cast<uint32_t>(bin) << low);
      s.left = wanted - over;
      s.in_bin = s.bins[bin];
    }
    __syncthreads();
    last = (1u << low) - 1;
  } while (last > 0 && s.in_bin > kFew);
  return last;
}

/// The m best by order, whose extremes s holds, 1 <= m <= kept.n; of equal ones the lowest keys.
template <int kThreads, bool kInShared>
__device__ Pick find_best(SelectShared& s, const KeptScores<kThreads, kInShared>& kept, int m) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto restart = [&](uint32_t prefix, int left) {
    __syncthreads();
    if (thread == 0) s.prefix = prefix, s.left = left, s.n_few = 0;
    __syncthreads();
  };
  const uint32_t least = s.least, range = s.most - least;
  restart(least, m);
  uint32_t last = narrow(s, kept, range, [](uint32_t order, uint32_t) { return order; });
  uint32_t equal = 0;  // the order of all that are in question; 0: they differ
  if (s.in_bin > kFew) {
    equal = s.prefix;
    if (s.left == s.in_bin) return {equal, ~0u};
    // The lowest keys are the highest of the places below.
    constexpr uint32_t kHighest = 0x7fffffff;
    restart(0, s.left);
    last = narrow(s, kept, kHighest, [&](uint32_t order, uint32_t key) {
      return order == equal ? kHighest - key : ~0u;
    });
    const uint32_t prefix = s.prefix;
    kept.each([&](int, uint32_t order, uint32_t key) {
      if (order == equal && kHighest - key - prefix <= last)
        s.few[atomicAdd(&s.n_few, 1)] = {order, key};
    });
  } else {
    const uint32_t prefix = s.prefix;
    kept.each([&](int, uint32_t order, uint32_t key) {
      if (order - prefix <= last) s.few[atomicAdd(&s.n_few, 1)] = {order, key};
    });
  }
  __syncthreads();
  for (int i = thread; i < s.n_few; i += kThreads) {
    const uint2 own = s.few[i];
    int better = 0;
    for (int j = 0; j < s.n_few; ++j)
      better += Pick{own.x, own.y}.takes(s.few[j].x, s.few[j].y) ? 1 : 0;
    if (better == s.left) s.pick = {own.x, own.y};  // itself among them
  }
  __syncthreads();
  return s.pick;
}

}  // namespace tandem::coded
