#pragma once
// The best of many numbers by a block of threads: a radix select of their order, and an ordered
// collection, so that of equal ones at the threshold the lowest are chosen.
#include "kernels/cuda/scan.cuh"

namespace tandem::best {

inline constexpr int kThreads = 512;
inline constexpr int kEach = 8;  // keys of a thread at a time
// The upper digit of an f16 distinguishes 32 steps of each power of two: few keys add to one bin.
inline constexpr int kDigitBits = 11, kBins = 1 << kDigitBits;

/// A block's shared memory.
struct Shared {
  int bins[kBins];
  uint32_t prefix;
  int left;  // of the keys to choose, those whose digits so far are the prefix
};

/// Adds the digit of bins that holds the wanted key, counted from the largest, to the prefix.
__device__ inline void choose_bin(Shared& s, int low) {
  constexpr int kOwn = kBins / kThreads;
  const int first = kBins - 1 - static_cast<int>(threadIdx.x) * kOwn, wanted = s.left;
  int sum = 0, all;
  for (int i = 0; i < kOwn; ++i) sum += s.bins[first - i];
  int before = cuda::sum_before<kThreads>(sum, all);
  if (before >= wanted || before + sum < wanted) return;
  int bin = first;
  for (; before + s.bins[bin] < wanted; --bin) before += s.bins[bin];
  s.prefix |= static_cast<uint32_t>(bin) << low;
  s.left = wanted - before;
}

/// The m-th largest of n, digit by digit from the highest, and in `left` how many that equal it are
/// chosen.
template <class Keys>
__device__ uint32_t threshold(Shared& s, const Keys& keys, int n, int m) {
  if (threadIdx.x == 0) s.prefix = 0, s.left = m;
#pragma unroll
  for (int high = Keys::kBits; high > 0;) {
    const int low = max(high - kDigitBits, 0);
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) s.bins[i] = 0;
    __syncthreads();
    const uint32_t prefix = s.prefix, known = high == Keys::kBits ? 0 : ~0u << high;
    for (int i = static_cast<int>(threadIdx.x) * kEach; i < n; i += kThreads * kEach) {
      uint32_t x[kEach];
      keys.load(i, n, x);
#pragma unroll
      for (int e = 0; e < kEach; ++e)
        if (i + e < n && (x[e] & known) == prefix)
          atomicAdd(&s.bins[x[e] >> low & ((1u << (high - low)) - 1)], 1);
    }
    __syncthreads();
    choose_bin(s, low);
    __syncthreads();
    high = low;
  }
  return s.prefix;
}

/// Calls write(place, key) for the m chosen keys, in their order.
template <class Keys, class Write>
__device__ void collect(Shared& s, const Keys& keys, int n, int m, uint32_t least, int n_equal,
                        const Write& write) {
  int above = 0, equal = 0;  // of the keys so far
  for (int begin = 0; begin < n && above + min(equal, n_equal) < m; begin += kThreads * kEach) {
    const int i = begin + static_cast<int>(threadIdx.x) * kEach;
    uint32_t x[kEach];
    keys.load(i, n, x);
    int counts = 0;  // in the lower half of those above the threshold, in the upper of those at it
#pragma unroll
    for (int e = 0; e < kEach; ++e)
      if (i + e < n) counts += x[e] > least ? 1 : x[e] == least ? 1 << 16 : 0;
    int all;
    const int before = cuda::sum_before<kThreads>(counts, all);
    int mine_above = above + (before & 0xffff), mine_equal = equal + (before >> 16);
#pragma unroll
    for (int e = 0; e < kEach && counts > 0; ++e) {
      const bool is_above = i + e < n && x[e] > least, is_equal = i + e < n && x[e] == least;
      if (is_above || (is_equal && mine_equal < n_equal))
        write(mine_above + min(mine_equal, n_equal), i + e);
      mine_above += is_above ? 1 : 0;
      mine_equal += is_equal ? 1 : 0;
    }
    above += all & 0xffff;
    equal += all >> 16;
  }
}

/// Calls write(place, key) for the m best of n keys, 0 < m <= n, in their order.
template <class Keys, class Write>
__device__ void choose(Shared& s, const Keys& keys, int n, int m, const Write& write) {
  const uint32_t least = threshold(s, keys, n, m);
  collect(s, keys, n, m, least, s.left, write);
}

/// Numbers of either sign, none NaN: what load gives has their order.
struct Numbers {
  static constexpr int kBits = 32;
  const float* at;

  /// The order of numbers [i, i + kEach), those before n of them.
  __device__ void load(int i, int n, uint32_t (&x)[kEach]) const {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      uint32_t bits = i + e < n ? __float_as_uint(at[i + e]) : 0;
      if ((bits & 0x7fffffffu) == 0) bits = 0;  // zeros are equal
      x[e] = bits >> 31 ? ~bits : bits | 0x80000000u;
    }
  }
};

}  // namespace tandem::best
