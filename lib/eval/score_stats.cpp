#include "eval/score_stats.h"

#include <cmath>

#include "base/check.h"

namespace tandem::eval {

Range wilson_interval(int successes, int n) {
  TANDEM_CHECK(n > 0 && successes >= 0 && successes <= n,
               "expected 0 to n successes of n > 0 cases, found {} of {}", successes, n);
  constexpr double kZ = 1.959963984540054;  // 97.5 % quantile of the normal distribution
  const double p = static_cast<double>(successes) / n;
  const double scale = 1 + kZ * kZ / n;
  const double centre = (p + kZ * kZ / (2.0 * n)) / scale;
  const double half = kZ / scale * std::sqrt(p * (1 - p) / n + kZ * kZ / (4.0 * n * n));
  return {successes == 0 ? 0.0 : centre - half, successes == n ? 1.0 : centre + half};
}

Estimate mean_of(std::span<const double> values) {
  Estimate e;
  if (values.empty()) return e;
  const auto n = static_cast<double>(values.size());
  double sum = 0;
  for (const double x : values) sum += x;
  e.mean = sum / n;
  if (values.size() < 2) return e;
  double squares = 0;
  for (const double x : values) squares += (x - e.mean) * (x - e.mean);
  e.stderr_ = std::sqrt(squares / (n - 1) / n);
  return e;
}

Estimate mean_of_blocks(std::span<const Block> blocks) {
  Estimate e;
  double sum = 0, n = 0, m = 0;
  for (const Block& b : blocks) {
    sum += b.sum;
    n += static_cast<double>(b.n);
    m += b.n > 0 ? 1 : 0;
  }
  if (n == 0) return e;
  e.mean = sum / n;
  if (m < 2) return e;
  double squares = 0;
  for (const Block& b : blocks) {
    const double residual = b.sum - static_cast<double>(b.n) * e.mean;
    squares += residual * residual;
  }
  e.stderr_ = std::sqrt(squares * m / (m - 1)) / n;
  return e;
}

}  // namespace tandem::eval
