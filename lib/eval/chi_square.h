#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace tandem::eval {

/// Probability that a chi-square variable of `degrees` degrees of freedom is x or more. numerics
/// regularised incomplete gamma function, relative error below 1e-12 down to 1e-300
double chi_square_tail(double x, int degrees);

/// Pearson's test that two samples of equal size follow one distribution.
struct TwoSampleTest {
  int cells = 0, degrees = 0;
  double chi_square = 0;
  double p = 1;  // of a statistic at least as large, if they do

  /// Both tests as one, of independent samples: statistics and degrees of freedom add up.
  void add(const TwoSampleTest& other);
};

/// How often an outcome was seen in each sample.
using OutcomeCounts = std::map<std::vector<int32_t>, std::array<int64_t, 2>>;

/// Outcomes seen fewer than 20 times in both samples together are pooled into up to 16 cells by a
/// hash of the outcome, so that an error in some dozens of rare outcomes shows as well; cells that
/// are still rare go into one.
TwoSampleTest compare_samples(const OutcomeCounts& counts);

}  // namespace tandem::eval
