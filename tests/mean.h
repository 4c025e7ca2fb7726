#pragma once
#include <algorithm>
#include <cmath>

namespace tandem::test {

/// Mean of many draws, and how far it may be from an expected value.
struct Mean {
  double n = 0, sum = 0, squares = 0;

  void add(double x) {
    ++n;
    sum += x;
    squares += x * x;
  }
  double mean() const { return sum / n; }
  /// Standard error. Of equal draws it is 0, whatever the rounding of the squares.
  double error() const { return std::sqrt(std::max(0.0, squares / n - mean() * mean()) / n); }
  /// Within four standard errors, and a share of the expected value for roundings.
  bool is(double want, double rounding = 0) const {
    return std::abs(mean() - want) <= 4 * error() + rounding * std::abs(want);
  }
};

}  // namespace tandem::test
