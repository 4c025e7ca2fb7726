#pragma once
#include <algorithm>
#include <cmath>
#include <span>

#include "base/check.h"

namespace tandem {

/// Quantile q in [0, 1] by linear interpolation between order statistics; `sorted` ascending and
/// not empty.
inline double percentile(std::span<const double> sorted, double q) {
  TANDEM_CHECK(!sorted.empty() && q >= 0 && q <= 1,
               "expected at least one sample and a quantile from 0 to 1, found {} and {}",
               sorted.size(), q);
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

}  // namespace tandem
