#pragma once
#include <cstdint>
#include <optional>
#include <span>

namespace tandem::eval {

struct Range {
  double low = 0, high = 0;
};

/// Wilson's 95 % interval of a probability after `successes` of `n` > 0 trials. Unlike the normal
/// one it stays inside [0, 1] and has a width when all trials agree.
Range wilson_interval(int successes, int n);

struct Estimate {
  double mean = 0;
  std::optional<double> stderr_;  // absent where the sample is too small
};

/// Mean of values and its standard error.
Estimate mean_of(std::span<const double> values);

/// Sum of a run of neighbouring values.
struct Block {
  double sum = 0;
  int64_t n = 0;

  void add(double value, int64_t count = 1) {
    sum += value;
    n += count;
  }
};

/// Mean over all values of the blocks; empty ones do not count. Its standard error takes blocks,
/// not values, as independent: neighbouring tokens are correlated (ratio estimator, exact for equal
/// blocks).
Estimate mean_of_blocks(std::span<const Block> blocks);

}  // namespace tandem::eval
