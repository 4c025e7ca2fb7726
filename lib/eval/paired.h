#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "eval/score_stats.h"

namespace tandem::eval {

/// How a method and a reference fared on the same cases.
struct PairedCounts {
  int both = 0, method_only = 0, reference_only = 0, neither = 0;  // correct

  int n() const { return both + method_only + reference_only + neither; }
  double method() const { return static_cast<double>(both + method_only) / n(); }
  double reference() const { return static_cast<double>(both + reference_only) / n(); }
  void add(bool method_correct, bool reference_correct);
};

/// Mean of the method minus that of the reference, paired by case.
Estimate paired_difference(const PairedCounts& counts);

/// 95 % interval of method - share * reference. Half a case is added to each of the four counts
/// (Agresti and Min 2005), which keeps a width where few cases differ, or none.
Range paired_interval(const PairedCounts& counts, double share = 1);

/// Intervals of a mean over tasks, each task counting the same.
struct TaskMeans {
  double method = 0;
  Range interval = {};               // 95 %, of `method`
  Estimate difference = {};          // to the reference, paired by case
  Range difference_interval = {};    // 95 %
  std::optional<double> ratio = {};  // to the reference's mean; absent when that is 0
};
TaskMeans mean_over_tasks(std::span<const PairedCounts> tasks);

/// Percentile bootstrap of ratios of means, 95 %: cases are redrawn within their task, pairs kept
/// together. One interval for each task, then that of the mean over tasks; absent where draws have
/// no reference to divide by. The same seed gives the same intervals.
std::vector<std::optional<Range>> bootstrap_ratios(std::span<const PairedCounts> tasks,
                                                   uint64_t seed = 0, int draws = 2000);

}  // namespace tandem::eval
