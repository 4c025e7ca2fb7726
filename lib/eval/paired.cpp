#include "eval/paired.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"

namespace tandem::eval {
namespace {

constexpr double kZ = 1.959963984540054;  // 97.5 % quantile of the normal distribution

struct Moments {
  double mean = 0, variance = 0;  // of one case
};

/// Of method - share * reference, `extra` cases added to each count.
Moments moments(const PairedCounts& c, double share, double extra) {
  const double n = c.n() + 4 * extra;
  double sum = 0, squares = 0;
  const auto add = [&](int count, double value) {
    sum += (count + extra) * value;
    squares += (count + extra) * value * value;
  };
  add(c.both, 1 - share);
  add(c.method_only, 1);
  add(c.reference_only, -share);
  add(c.neither, 0);
  const double mean = sum / n;
  return {mean, std::max(0.0, squares / n - mean * mean)};
}

/// Variance of the adjusted mean over a task's cases.
double adjusted_variance(const PairedCounts& c, double share) {
  return moments(c, share, 0.5).variance / (c.n() + 2);
}

Range around(double mean, double variance, double lowest, double highest) {
  const double half = kZ * std::sqrt(variance);
  return {std::max(lowest, mean - half), std::min(highest, mean + half)};
}

/// Redraws a task's cases.
PairedCounts redraw(const PairedCounts& c, PhiloxStream& random) {
  PairedCounts drawn;
  const auto n = static_cast<uint32_t>(c.n());
  for (uint32_t i = 0; i < n; ++i) {
    const auto pick = static_cast<int>(random.below(n));
    if (pick < c.both)
      ++drawn.both;
    else if (pick < c.both + c.method_only)
      ++drawn.method_only;
    else if (pick < c.both + c.method_only + c.reference_only)
      ++drawn.reference_only;
    else
      ++drawn.neither;
  }
  return drawn;
}

}  // namespace

void PairedCounts::add(bool method_correct, bool reference_correct) {
  if (method_correct)
    ++(reference_correct ? both : method_only);
  else
    ++(reference_correct ? reference_only : neither);
}

Estimate paired_difference(const PairedCounts& c) {
  const Moments m = moments(c, 1, 0);
  Estimate e{.mean = m.mean, .stderr_ = {}};
  if (c.n() > 1) e.stderr_ = std::sqrt(m.variance / (c.n() - 1));
  return e;
}

Range paired_interval(const PairedCounts& c, double share) {
  return around(moments(c, share, 0.5).mean, adjusted_variance(c, share), -share, 1);
}

TaskMeans mean_over_tasks(std::span<const PairedCounts> tasks) {
  TaskMeans means;
  const auto n = static_cast<double>(tasks.size());
  double reference = 0, variance = 0, difference_variance = 0, squared_errors = 0;
  bool has_errors = true;
  for (const PairedCounts& c : tasks) {
    means.method += c.method() / n;
    reference += c.reference() / n;
    variance += adjusted_variance(c, 0) / (n * n);
    difference_variance += adjusted_variance(c, 1) / (n * n);
    const Estimate difference = paired_difference(c);
    means.difference.mean += difference.mean / n;
    has_errors &= difference.stderr_.has_value();
    const double error = difference.stderr_.value_or(0) / n;
    squared_errors += error * error;
  }
  if (has_errors) means.difference.stderr_ = std::sqrt(squared_errors);
  means.interval = around(means.method, variance, 0, 1);
  means.difference_interval = around(means.difference.mean, difference_variance, -1, 1);
  if (reference > 0) means.ratio = means.method / reference;
  return means;
}

std::vector<std::optional<Range>> bootstrap_ratios(std::span<const PairedCounts> tasks,
                                                   uint64_t seed, int draws) {
  std::vector<std::vector<double>> ratios(tasks.size() + 1);
  PhiloxStream random(seed);
  for (int draw = 0; draw < draws; ++draw) {
    double method = 0, reference = 0;
    for (size_t i = 0; i < tasks.size(); ++i) {
      const PairedCounts drawn = redraw(tasks[i], random);
      method += drawn.method();
      reference += drawn.reference();
      if (drawn.reference() > 0) ratios[i].push_back(drawn.method() / drawn.reference());
    }
    if (reference > 0) ratios.back().push_back(method / reference);
  }
  std::vector<std::optional<Range>> intervals;
  for (std::vector<double>& list : ratios) {
    std::ranges::sort(list);
    const auto last = static_cast<double>(list.size()) - 1;
    if (list.empty())
      intervals.emplace_back();
    else
      intervals.push_back(Range{list[static_cast<size_t>(std::floor(0.025 * last))],
                                list[static_cast<size_t>(std::ceil(0.975 * last))]});
  }
  return intervals;
}

}  // namespace tandem::eval
