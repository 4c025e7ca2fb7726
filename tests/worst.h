#pragma once
#include <cmath>

namespace tandem::test {

/// The larger error, and NaN once any was: std::max would lose it, and no bound would notice.
inline double worse(double worst, double error) {
  return std::isnan(worst) || error <= worst ? worst : error;
}

}  // namespace tandem::test
