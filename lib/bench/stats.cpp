#include "bench/stats.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/rng.h"

namespace tandem::bench {
namespace {

std::vector<double> sorted_copy(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

}  // namespace

Summary summarize(std::span<const double> samples) {
  const std::vector<double> sorted = sorted_copy(samples);
  Summary s;
  s.n = sorted.size();
  TANDEM_CHECK(s.n > 0, "expected at least one sample");
  for (const double x : sorted) s.mean += x;
  s.mean /= static_cast<double>(s.n);
  for (const double x : sorted) s.stddev += (x - s.mean) * (x - s.mean);
  s.stddev = s.n > 1 ? std::sqrt(s.stddev / static_cast<double>(s.n - 1)) : 0.0;
  s.min = sorted.front();
  s.p50 = percentile(sorted, 0.50);
  s.p90 = percentile(sorted, 0.90);
  s.p95 = percentile(sorted, 0.95);
  s.p99 = percentile(sorted, 0.99);
  s.max = sorted.back();
  return s;
}

double median(std::span<const double> samples) { return percentile(sorted_copy(samples), 0.5); }

double robust_stddev(std::span<const double> samples) {
  const double center = median(samples);
  std::vector<double> distance;
  for (const double x : samples) distance.push_back(std::abs(x - center));
  return 1.4826 * median(distance);
}

std::vector<std::string> sample_warnings(const std::string& name, std::span<const double> samples) {
  constexpr double kFarAway = 10, kNoisy = 0.05;
  std::vector<std::string> warnings;
  if (samples.size() < 3) return warnings;
  const Summary s = summarize(samples);
  const double spread = robust_stddev(samples);
  const auto is_far = [&](double x) { return std::abs(x - s.p50) > kFarAway * spread; };
  const auto n_far = std::count_if(samples.begin() + 1, samples.end(), is_far);
  if (is_far(samples[0]))
    warnings.push_back(
        fmt::format("{}: the first sample ({:.4g}) is far from the median ({:.4g}). Use a longer "
                    "warm-up",
                    name, samples[0], s.p50));
  if (n_far > 0)
    warnings.push_back(
        fmt::format("{}: {} of {} samples lie more than 10 robust standard "
                    "deviations from the median",
                    name, n_far, s.n));
  if (s.stddev > kNoisy * s.mean)
    warnings.push_back(
        fmt::format("{}: standard deviation is {:.1f} % of the mean, perhaps because of other work "
                    "on the machine",
                    name, 100 * s.stddev / s.mean));
  return warnings;
}

std::string Steadiness::text() const {
  if (is_steady()) return {};
  if (outside > kMostOutside)
    return fmt::format("not steady: {:.0f} % of {} samples lie more than {:.0f} % from the median",
                       100 * outside, n, 100 * kAway);
  return fmt::format("not steady: the standard deviation of {} samples is {:.0f} % of the mean", n,
                     100 * spread);
}

Steadiness steadiness(std::span<const double> samples) {
  const Summary s = summarize(samples);
  const auto n_outside = std::ranges::count_if(
      samples, [&](double x) { return std::abs(x - s.p50) > Steadiness::kAway * s.p50; });
  return {.n = s.n,
          .outside = static_cast<double>(n_outside) / static_cast<double>(s.n),
          .spread = s.mean > 0 ? s.stddev / s.mean : 0};
}

Interval bootstrap_median_interval(std::span<const double> values, int resamples, uint64_t seed) {
  TANDEM_CHECK(!values.empty() && resamples > 0, "expected values and resamples, found {} values",
               values.size());
  PhiloxStream stream(seed);
  std::vector<double> draw(values.size()), medians;
  medians.reserve(static_cast<size_t>(resamples));
  for (int i = 0; i < resamples; ++i) {
    for (double& x : draw) x = values[stream.below(static_cast<uint32_t>(values.size()))];
    medians.push_back(median(draw));
  }
  std::sort(medians.begin(), medians.end());
  return {percentile(medians, 0.025), percentile(medians, 0.975)};
}

}  // namespace tandem::bench
