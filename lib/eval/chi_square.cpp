#include "eval/chi_square.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/rng.h"

namespace tandem::eval {
namespace {

constexpr double kEps = std::numeric_limits<double>::epsilon();

/// P(a, x) by its series; converges fast below x = a + 1.
double gamma_lower(double a, double x) {
  double term = 1 / a, sum = term;
  for (double n = a + 1; term > sum * kEps; ++n) sum += term *= x / n;
  return sum * std::exp(a * std::log(x) - x - std::lgamma(a));
}

/// Q(a, x) by its continued fraction (Lentz); converges fast above x = a + 1.
double gamma_upper(double a, double x) {
  constexpr double kTiny = 1e-300;
  double b = x + 1 - a, c = 1 / kTiny, d = 1 / b, h = d;
  for (int i = 1; i < 10000; ++i) {
    const double an = -i * (i - a);
    b += 2;
    d = an * d + b;
    c = b + an / c;
    if (std::abs(d) < kTiny) d = kTiny;
    if (std::abs(c) < kTiny) c = kTiny;
    d = 1 / d;
    h *= c * d;
    if (std::abs(c * d - 1) < kEps) break;
  }
  return h * std::exp(a * std::log(x) - x - std::lgamma(a));
}

// Each sample then expects 10: the usual bound for Pearson's approximation is 5.
constexpr int64_t kCommon = 20;
constexpr int64_t kMostPools = 16;

uint32_t hash_of(const std::vector<int32_t>& outcome) {
  uint32_t hash = 0;
  for (const int32_t id : outcome)
    hash = draw4(hash, static_cast<uint32_t>(id), 0, DrawPurpose::data)[0];
  return hash;
}

}  // namespace

double chi_square_tail(double x, int degrees) {
  if (x <= 0 || degrees == 0) return 1;
  const double a = degrees / 2.0;
  return x / 2 < a + 1 ? 1 - gamma_lower(a, x / 2) : gamma_upper(a, x / 2);
}

void TwoSampleTest::add(const TwoSampleTest& other) {
  cells += other.cells;
  degrees += other.degrees;
  chi_square += other.chi_square;
  p = chi_square_tail(chi_square, degrees);
}

TwoSampleTest compare_samples(const OutcomeCounts& counts) {
  int64_t n_rare = 0;
  for (const auto& [outcome, c] : counts)
    if (c[0] + c[1] < kCommon) n_rare += c[0] + c[1];
  // So few that one rarely stays rare.
  const auto n_pools =
      static_cast<size_t>(std::clamp<int64_t>(n_rare / (2 * kCommon), 1, kMostPools));
  std::vector<std::array<int64_t, 2>> pools(n_pools + 1);  // the last takes pools that are rare
  TwoSampleTest test;
  const auto add = [&](const std::array<int64_t, 2>& c) {
    const auto [a, b] = c;
    if (a + b == 0) return;
    test.chi_square += static_cast<double>((a - b) * (a - b)) / static_cast<double>(a + b);
    ++test.cells;
  };
  const auto pour = [](std::array<int64_t, 2>& into, const std::array<int64_t, 2>& c) {
    into[0] += c[0];
    into[1] += c[1];
  };
  for (const auto& [outcome, c] : counts) {
    if (c[0] + c[1] >= kCommon)
      add(c);
    else
      pour(pools[hash_of(outcome) % n_pools], c);
  }
  for (size_t i = 0; i < n_pools; ++i) {
    if (pools[i][0] + pools[i][1] >= kCommon)
      add(pools[i]);
    else
      pour(pools[n_pools], pools[i]);
  }
  add(pools[n_pools]);
  test.degrees = std::max(0, test.cells - 1);
  test.p = chi_square_tail(test.chi_square, test.degrees);
  return test;
}

}  // namespace tandem::eval
