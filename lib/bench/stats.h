#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/percentile.h"

namespace tandem::bench {

/// Order statistics and moments of a set of samples, in the unit of the samples.
struct Summary {
  size_t n = 0;
  double mean = 0, stddev = 0;  // stddev with n - 1, 0 for a single sample
  double min = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
};

/// errors   kind internal: no samples
Summary summarize(std::span<const double> samples);
double median(std::span<const double> samples);

/// Median absolute deviation times 1.4826: a standard deviation that a few outliers do not move
/// (for normal samples the two agree).
double robust_stddev(std::span<const double> samples);

/// What a reader of the measurement must know: a slow first sample, samples more than 10 robust
/// standard deviations from the median, stddev above 5 % of the mean. Empty when all is well.
std::vector<std::string> sample_warnings(const std::string& name, std::span<const double> samples);

/// Whether samples are of one thing. They are not where more than a tenth of them lie more than a
/// quarter of the median away from it, or their standard deviation is above half of the mean:
/// other work had the machine meanwhile. Fewer than 3 are not judged.
struct Steadiness {
  static constexpr double kAway = 0.25, kMostOutside = 0.1, kMostSpread = 0.5;
  size_t n = 0;
  double outside = 0;  // share of samples more than kAway from the median
  double spread = 0;   // standard deviation over mean
  bool is_steady() const { return n < 3 || (outside <= kMostOutside && spread <= kMostSpread); }
  /// `not steady: 38 % of 64 samples lie more than 25 % from the median`; empty where it is.
  std::string text() const;
};
Steadiness steadiness(std::span<const double> samples);

struct Interval {
  double low, high;
};

/// Percentile-bootstrap 95 % interval of the median.
Interval bootstrap_median_interval(std::span<const double> values, int resamples = 1000,
                                   uint64_t seed = 0);

}  // namespace tandem::bench
