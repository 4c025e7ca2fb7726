#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace tandem::speculate {

/// Sums of the chances that child k of a node is the one accepted: the mean of each, and its
/// standard error.
class ChanceSums {
 public:
  explicit ChanceSums(int width)
      : sum_(static_cast<size_t>(width)), sum_of_squares_(static_cast<size_t>(width)) {}

  /// shapes   chances [width]
  void add(std::span<const double> chances);
  int64_t samples() const { return samples_; }
  int width() const { return static_cast<int>(sum_.size()); }
  double mean(int k) const;
  double standard_error(int k) const;

 private:
  std::vector<double> sum_, sum_of_squares_;
  int64_t samples_ = 0;
};

}  // namespace tandem::speculate
