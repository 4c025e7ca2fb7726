#include "kernels/selection/keep_lanes.h"
#include "kernels/selection/select_top.h"

namespace tandem {
namespace {

constexpr int kLanes = Vec::kLanes;
constexpr float kInf = __builtin_inff();
// Sampled scores: they bound the m-th largest closely enough that about twice m scores remain at
// m = 2 % of them, and searching the sample costs a hundredth of a pass over 100,000.
constexpr int kSample = 1024;
constexpr int kLeastSampled = 8 * kSample;  // below, the sample saves nothing

/// Floats as unsigned integers of the same order.
TANDEM_INLINE uint32_t order_key(float x) {
  const uint32_t u = __builtin_bit_cast(uint32_t, x);
  return u ^ (static_cast<uint32_t>(static_cast<int32_t>(u) >> 31) | 0x80000000u);
}
TANDEM_INLINE float from_order_key(uint32_t key) {
  return __builtin_bit_cast(float, (key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key);
}

/// Lanes past n read as 0; their mask says so.
TANDEM_INLINE Vec load_inside(const float* x, int i, int n) {
  return n - i >= kLanes ? load(x + i) : load_n(x + i, n - i);
}
TANDEM_INLINE Mask inside(int i, int n) { return first_lanes(n - i < kLanes ? n - i : kLanes); }

int count_above(const float* x, int n, float bound) {
  const Vec limit = set1(bound);
  int count = 0, i = 0;
  for (; i + kLanes <= n; i += kLanes) count += count_set(lt(limit, load(x + i)));
  if (i < n) count += count_set(lt(limit, load_n(x + i, n - i)) & inside(i, n));
  return count;
}

float largest(const float* x, int n) {
  Vec all = set1(-kInf);
  for (int i = 0; i < n; i += kLanes)
    all = max(all, select(inside(i, n), load_inside(x, i, n), set1(-kInf)));
  return reduce_max(all);
}

float least_above(const float* x, int n, float bound) {
  Vec all = set1(kInf);
  for (int i = 0; i < n; i += kLanes) {
    const Vec v = load_inside(x, i, n);
    all = min(all, select(lt(set1(bound), v) & inside(i, n), v, set1(kInf)));
  }
  return -reduce_max(zero() - all);
}

/// The k-th largest of n numbers not below `floor`, 1 <= k <= n. Bisection of bit patterns: at most
/// 32 passes for any numbers, and about log2(n) where they differ, since it ends as soon as a bound
/// has k numbers above it.
float kth_largest(const float* x, int n, int k, float floor) {
  // At least k numbers are above low, fewer above high.
  uint32_t low = order_key(floor) - 1, high = order_key(largest(x, n));
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    const float bound = from_order_key(middle);
    const int above = count_above(x, n, bound);
    if (above == k) return least_above(x, n, bound);
    (above > k ? low : high) = middle;
  }
  return from_order_key(high);
}

/// Ids of the numbers that are not below `floor`, to memory for n + kLanes of them; how many.
TANDEM_INLINE int keep_reached(void* ids, const float* x, int n, float floor) {
  const Vec bound = set1(floor);
  auto* to = static_cast<int32_t*>(ids);
  int i = 0;
  const auto keep = [&](Mask kept) {
    store_ids(to, pack(iota(i), kept));
    to += count_set(kept);
  };
  for (; i + kLanes <= n; i += kLanes) keep(at_least(load(x + i), bound));
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
  if (n < p.m || 2 * n + 3 * kLanes > p.n) return all;
  store_ids(p.scratch + n, iota(0));  // so that whole vectors may be gathered
  float* scores = p.scratch + n + kLanes;
  for (int i = 0; i < n; i += kLanes) store(scores + i, gather(p.scores, load_ids(p.scratch + i)));
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
  for (int i = 0; i < c.n; i += kLanes) {
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
