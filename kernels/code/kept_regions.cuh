#pragma once
// What a scan kept of a list's regions, as if it lay one region after the other.
#include <algorithm>

#include "kernels/code/coded_list.cuh"
#include "kernels/code/kept_scores.cuh"
#include "kernels/code/tail_means.h"
#include "kernels/cuda/scan.cuh"

namespace tandem::coded {

/// A block's shared memory for its list: how many are kept before each region, a bit a key, masses
/// by run; and kept orders and their keys, as many as find room.
struct KeptRoom {
  int words, keys;

  /// heads    of the list: each has a mass a run
  KeptRoom(const ChooseCodedParams& p, int bytes, int heads)
      : words(static_cast<int>(choice_shared_words(p.max_keys, heads))),
        keys(std::clamp((bytes / kWord - words) / 2, 0, p.max_keys)) {}
  int bytes() const { return kWord * (words + 2 * keys); }

 private:
  static constexpr int kWord = sizeof(uint32_t);
};

struct KeptRegions {
  int* before;  // [regions + 1] how many are kept before each
  int regions, n;

  /// By the whole block, which waits.
  template <int kThreads>
  __device__ static KeptRegions count(int keys, const int32_t* counts, int* before) {
    const int regions = (keys + kRegionKeys - 1) / kRegionKeys,
              thread = static_cast<int>(threadIdx.x);
    const int each = (regions + kThreads - 1) / kThreads;
    const int begin = min(thread * each, regions), end = min(begin + each, regions);
    int own = 0, all;
    for (int r = begin; r < end; ++r) own += counts[r];
    int sum = cuda::sum_before<kThreads>(own, all);
    for (int r = begin; r < end; ++r) {
      before[r] = sum;
      sum += counts[r];
    }
    if (thread == 0) before[regions] = all;
    __syncthreads();
    return {before, regions, all};
  }

  /// Copies orders of scores and keys, and sets their extremes in s.
  template <int kThreads, bool kInShared>
  __device__ void gather(SelectShared& s, const KeptKey* scanned,
                         const KeptScores<kThreads, kInShared>& to) const {
    Extremes extremes;
    each<kThreads>([&](int place) { return scanned[place]; },
                   [&](int i, KeptKey kept) {
                     const uint32_t order = order_of(kept.score);
                     extremes.take(order);
                     to.orders[i] = order;
                     to.keys[i] = kept.key;
                   });
    extremes.join(s);
  }

  /// Calls use(i, read(place)) for every kept one: its number among them, and its place among
  /// the regions'. A thread reads several before it uses one.
  template <int kThreads, class Read, class Use>
  __device__ void each(const Read& read, const Use& use) const {
    // A warp has some side by side, whose regions it finds by going on from the first.
    const int own = (n + kThreads - 1) / kThreads * cuda::kWarp;
    const int begin = cuda::warp_of() * own, end = min(begin + own, n);
    int region = 0;
    for (int high = regions; high - region > 1;) {
      const int middle = (region + high) / 2;
      (before[middle] <= begin ? region : high) = middle;
    }
    const auto read_at = [&](int i) {
      while (before[region + 1] <= i) ++region;
      return read(region * kRegionKeys + i - before[region]);
    };
    constexpr int kAhead = 2;
    int i = begin + cuda::lane_of();
#pragma unroll 1
    for (; i + (kAhead - 1) * cuda::kWarp < end; i += kAhead * cuda::kWarp) {
      decltype(read(0)) some[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) some[a] = read_at(i + a * cuda::kWarp);
#pragma unroll
      for (int a = 0; a < kAhead; ++a) use(i + a * cuda::kWarp, some[a]);
    }
#pragma unroll 1
    for (; i < end; i += cuda::kWarp) use(i, read_at(i));
  }
};

/// Writes the tokens of set bits, one for each of n keys, in their order; by the whole block.
template <int kThreads>
__device__ void write_ids(const uint32_t* bits, int n, int first, int32_t* ids) {
  const int words = (n + 31) / 32, thread = static_cast<int>(threadIdx.x);
  const int each = (words + kThreads - 1) / kThreads;
  const int begin = min(thread * each, words), end = min(begin + each, words);
  int own = 0, all;
  for (int w = begin; w < end; ++w) own += __popc(bits[w]);
  int32_t* to = ids + cuda::sum_before<kThreads>(own, all);
  for (int w = begin; w < end; ++w)
    for (uint32_t word = bits[w]; word != 0; word &= word - 1)
      *to++ = first + w * 32 + __ffs(static_cast<int>(word)) - 1;
}

}  // namespace tandem::coded
