#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tandem::train {

double Schedule::at(int64_t done) const {
  if (done < warmup_steps)
    return rate * static_cast<double>(from_zero ? done : done + 1) /
           static_cast<double>(warmup_steps);
  const auto rest = static_cast<double>(std::max<int64_t>(1, steps - warmup_steps));
  const double past = std::min(1.0, static_cast<double>(done - warmup_steps) / rest);
  double left = 1;
  if (kind == Kind::linear) left = 1 - past;
  if (kind == Kind::cosine) left = 0.5 * (1 + std::cos(std::numbers::pi * past));
  return rate * (least_share + (1 - least_share) * left);
}

}  // namespace tandem::train
