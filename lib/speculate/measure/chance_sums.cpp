#include "speculate/measure/chance_sums.h"

#include <algorithm>
#include <cmath>

namespace tandem::speculate {

void ChanceSums::add(std::span<const double> chances) {
  for (size_t k = 0; k < chances.size(); ++k) {
    sum_[k] += chances[k];
    sum_of_squares_[k] += chances[k] * chances[k];
  }
  ++samples_;
}

double ChanceSums::mean(int k) const {
  return samples_ > 0 ? sum_[static_cast<size_t>(k)] / static_cast<double>(samples_) : 0;
}

double ChanceSums::standard_error(int k) const {
  if (samples_ < 2) return 0;
  const auto n = static_cast<double>(samples_);
  const double variance =
      (sum_of_squares_[static_cast<size_t>(k)] / n - mean(k) * mean(k)) * n / (n - 1);
  return std::sqrt(std::max(0.0, variance) / n);
}

}  // namespace tandem::speculate
