#include "kernels/selection/kth_largest.h"
#include "kernels/selection/select_top.h"

namespace tandem {
namespace {

// Sampled scores: they bound the m-th largest closely enough that about twice m scores remain at
// m = 2 % of them, and searching the sample costs a hundredth of a pass over 100,000.
constexpr int kSample = 1024;
constexpr int kLeastSampled = 8 * kSample;  // below, the sample saves nothing

/// Ids of the numbers that are not below `floor`, to memory for n + kW of them; how many.
TANDEM_INLINE int keep_reached(void* ids, const float* x, int n, float floor) {
  const Vec bound = set1(floor);
  auto* to = static_cast<int32_t*>(ids);
  int i = 0;
  const auto keep = [&](Mask kept) {
    store_ids(to, pack(iota(i), kept));
    to += count_set(kept);
  };
  for (; i + kW <= n; i += kW) keep(at_least(load(x + i), bound));
  if (i < n) keep(at_least(load_n(x + i, n - i), bound) & inside(i, n));
  return static_cast<int>(to - static_cast<int32_t*>(ids));
}

/// Numbers among which the m largest are, in order of id, and a bound that none is below.
struct Candidates {
  const float* scores;
  const float* places;  // int32 each; null: 0, 1, ...
  int n;
  float floor;
};

/// Scores not below a bound taken from a sample; all scores if those are too few or too many.
Candidates find_candidates(const SelectTopParams& p) {
  const Candidates all{p.scores, nullptr, p.n, -kInf};
  // The sample holds `expected` of the m largest, give or take four deviations.
  const float expected = static_cast<float>(p.m) / static_cast<float>(p.n) * kSample;
  const int rank = static_cast<int>(expected + 4.0f * __builtin_sqrtf(expected)) + 4;
  if (p.n < kLeastSampled || 2 * rank > kSample) return all;
  const int64_t stride = (p.n / kSample - 1) | 1;  // odd: shares no factor with blocks of keys
  for (int i = 0; i < kSample; ++i) p.scratch[i] = p.scores[i * stride];
  const float floor = kth_largest(p.scratch, kSample, rank, -kInf);

  const int n = keep_reached(p.scratch, p.scores, p.n, floor);
  if (n < p.m || 2 * n + 3 * kW > p.n) return all;
  store_ids(p.scratch + n, iota(0));  // so that whole vectors may be gathered
  float* scores = p.scratch + n + kW;
  for (int i = 0; i < n; i += kW) store(scores + i, gather(p.scores, load_ids(p.scratch + i)));
  return {scores, p.scratch, n, floor};
}

/// The lowest `n` set bits.
TANDEM_INLINE uint32_t lowest_set(uint32_t bits, int n) {
  while (count_set(bits) > n) bits &= ~(0x80000000u >> __builtin_clz(bits));
  return bits;
}

/// Ids of the candidates above the threshold and of the first that equal it, m together.
void write_ids(const SelectTopParams& p, const Candidates& c, float threshold) {
  const Vec limit = set1(threshold);
  int ties = p.m - count_above(c.scores, c.n, threshold);
  int32_t* to = p.ids;
  for (int i = 0; i < c.n; i += kW) {
    const Vec v = load_inside(c.scores, i, c.n);
    const Mask above = lt(limit, v) & inside(i, c.n);
    const uint32_t equal = bits_of(at_least(v, limit) & inside(i, c.n)) & ~bits_of(above);
    const Mask taken = mask_of_bits(lowest_set(equal, ties));
    ties -= count_set(taken);
    const Ids ids = c.places != nullptr ? load_ids(c.places + i) : iota(i);
    store_ids(to, pack(ids + p.first_id, above | taken));
    to += count_set(above | taken);
  }
}

}  // namespace

int TANDEM_ISA_FN(select_top)(const SelectTopParams& p) {
  if (p.m >= p.n || p.m == 0) {
    *p.threshold = p.m >= p.n ? -kInf : kInf;
    const int n = p.m >= p.n ? p.n : 0;
    for (int i = 0; i < n; ++i) p.ids[i] = p.first_id + i;
    return n;
  }
  const Candidates c = find_candidates(p);
  *p.threshold = kth_largest(c.scores, c.n, p.m, c.floor);
  write_ids(p, c, *p.threshold);
  return p.m;
}

int TANDEM_ISA_FN(select_reached)(const SelectReachedParams& p) {
  return keep_reached(p.ids, p.scores, p.n, p.floor);
}

}  // namespace tandem
