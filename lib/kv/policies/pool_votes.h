#pragma once
#include <algorithm>
#include <span>

namespace tandem::kv {

/// Averages over `width` neighbours, an odd number; beyond the ends there are zeros, and the
/// divisor stays the width.
/// shapes   votes, out [n]
inline void pool_votes(std::span<const float> votes, int width, float* out) {
  const int n = static_cast<int>(votes.size()), reach = width / 2;
  for (int t = 0; t < n; ++t) {
    float sum = 0;
    for (int i = std::max(0, t - reach); i <= std::min(n - 1, t + reach); ++i)
      sum += votes[static_cast<size_t>(i)];
    out[t] = sum / static_cast<float>(width);
  }
}

}  // namespace tandem::kv
