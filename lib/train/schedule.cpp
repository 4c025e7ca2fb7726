#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tandem::train {

double Schedule::at(int64_t done) const {
  if (done < warmup_steps)
    return rate * static_cast<double>(done) / static_cast<double>(warmup_steps);
  const auto rest = static_cast<double>(std::max<int64_t>(1, steps - warmup_steps));
  const double share = static_cast<double>(done - warmup_steps) / rest;
  switch (kind) {
    case Kind::constant:
      return rate;
    case Kind::linear:
      return rate * std::max(0.0, 1 - share);
    case Kind::cosine:
      return rate * 0.5 * (1 + std::cos(std::numbers::pi * std::min(1.0, share)));
  }
  return rate;
}

}  // namespace tandem::train
