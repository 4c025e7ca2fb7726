#include "kernels/channels/choose_channels.h"

#include "kernels/selection/kth_largest.h"

namespace tandem {
namespace {

/// A list that has room for `most` ids, which are written in whole vectors where they fit.
struct List {
  int32_t* ids;
  int most;
  int n = 0;

  TANDEM_INLINE void add(int first, uint32_t kept) {
    if (n + kW <= most) {
      store_ids(ids + n, pack(iota(first), mask_of_bits(kept)));
      n += count_set(kept);
      return;
    }
    for (; kept != 0; kept &= kept - 1) ids[n++] = first + __builtin_ctz(kept);
  }
};

/// The highest `n` set bits.
TANDEM_INLINE uint32_t highest_set(uint32_t bits, int n) {
  while (count_set(bits) > n) bits &= bits - 1;
  return bits;
}

}  // namespace

void TANDEM_ISA_FN(choose_channels)(const ChooseChannelsParams& p, Range lists) {
  const int n = p.n_channels;
  for (int64_t l = lists.begin; l < lists.end; ++l) {
    const float* scores = p.scores + l * p.score_stride;
    const float threshold = kth_largest(scores, n, p.keep, -kInf);
    const Vec limit = set1(threshold);
    int reached = 0;
    for (int i = 0; i < n; i += kW)
      reached += count_set(at_least(load_inside(scores, i, n), limit) & inside(i, n));
    int dropped = reached - p.keep;  // of those equal to the threshold, the first
    List list{p.ids + l * p.id_stride, p.keep};
    for (int i = 0; i < n; i += kW) {
      const Vec v = load_inside(scores, i, n);
      uint32_t kept = bits_of(at_least(v, limit) & inside(i, n));
      if (dropped > 0) {
        const uint32_t equal = kept & ~bits_of(lt(limit, v));
        const int found = count_set(equal), left = found > dropped ? found - dropped : 0;
        kept = (kept & ~equal) | highest_set(equal, left);
        dropped -= found - left;
      }
      list.add(i, kept);
    }
    p.n[l * p.n_stride] = list.n;
  }
}

void TANDEM_ISA_FN(channels_above)(const ChooseChannelsParams& p, Range lists) {
  const int n = p.n_channels;
  const Vec limit = set1(p.threshold);
  for (int64_t l = lists.begin; l < lists.end; ++l) {
    const float* scores = p.scores + l * p.score_stride;
    List list{p.ids + l * p.id_stride, n};
    for (int i = 0; i < n; i += kW)
      list.add(i, bits_of(at_least(load_inside(scores, i, n), limit) & inside(i, n)));
    p.n[l * p.n_stride] = list.n;
    if (p.counted == nullptr) continue;
    p.counted[2 * l] += 1;
    p.counted[2 * l + 1] += list.n;
  }
}

}  // namespace tandem
