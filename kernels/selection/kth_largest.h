#pragma once
// The k-th largest of many numbers, none NaN: for bodies that select (*.inl).
#include "kernels/selection/keep_lanes.h"

namespace tandem {
namespace {

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
  return n - i >= kW ? load(x + i) : load_n(x + i, n - i);
}
TANDEM_INLINE Mask inside(int i, int n) { return first_lanes(n - i < kW ? n - i : kW); }

int count_above(const float* x, int n, float bound) {
  const Vec limit = set1(bound);
  int count = 0, i = 0;
  for (; i + kW <= n; i += kW) count += count_set(lt(limit, load(x + i)));
  if (i < n) count += count_set(lt(limit, load_n(x + i, n - i)) & inside(i, n));
  return count;
}

float largest(const float* x, int n) {
  Vec all = set1(-kInf);
  for (int i = 0; i < n; i += kW)
    all = max(all, select(inside(i, n), load_inside(x, i, n), set1(-kInf)));
  return reduce_max(all);
}

float least_above(const float* x, int n, float bound) {
  Vec all = set1(kInf);
  for (int i = 0; i < n; i += kW) {
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

}  // namespace
}  // namespace tandem
