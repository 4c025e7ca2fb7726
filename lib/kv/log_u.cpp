#include "kv/log_u.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tandem::kv {
namespace {

/// P[Bin(n, x) = t] for 0 < x < 1.
double binomial(int n, int t, double x) {
  double log_p = t * std::log(x) + (n - t) * std::log1p(-x);
  for (int i = 1; i <= t; ++i) log_p += std::log(static_cast<double>(n - t + i) / i);
  return std::exp(log_p);
}

/// P[Bin(n, x) >= t] for 0 < x < 1, 0 < t <= n. Terms on the side of the tail that the mean is not
/// on, largest first: none cancel, and those that vanish do not matter.
double upper_tail(int n, int t, double x) {
  const double odds = x / (1 - x);
  double sum = 0;
  if (n * x < t) {
    double term = binomial(n, t, x);
    for (int i = t; i <= n && term > 0; ++i) {
      sum += term;
      term *= odds * (n - i) / (i + 1);
    }
    return sum;
  }
  double term = binomial(n, t - 1, x);
  for (int i = t - 1; i >= 0 && term > 0; --i) {
    sum += term;
    term *= i / (odds * (n - i + 1));
  }
  return 1 - sum;
}

}  // namespace

double inclusion_probability(double cosine, int bits, int tables, int min_hits) {
  // acos(-c) / pi is 1 - acos(c) / pi without the cancellation near c = -1.
  const double same_side = std::acos(-std::clamp(cosine, -1.0, 1.0)) / std::numbers::pi;
  const double same_bucket = std::pow(same_side, bits);
  if (min_hits <= 0 || same_bucket >= 1) return min_hits <= tables ? 1 : 0;
  if (min_hits > tables || same_bucket <= 0) return 0;
  return upper_tail(tables, min_hits, same_bucket);
}

std::vector<float> log_u_table(int bits, int tables, int min_hits, double floor, int intervals) {
  constexpr double kLeast = 1e-30;
  std::vector<float> log_u(static_cast<size_t>(intervals) + 1);
  for (int i = 0; i <= intervals; ++i) {
    const double cosine = -1 + 2.0 * i / intervals;
    const double u = inclusion_probability(cosine, bits, tables, min_hits);
    log_u[static_cast<size_t>(i)] = static_cast<float>(std::log(std::max(u + floor, kLeast)));
  }
  return log_u;
}

}  // namespace tandem::kv
