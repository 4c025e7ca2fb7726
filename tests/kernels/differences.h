#pragma once
// Central differences in double, the judge of the backward references.
#include <functional>
#include <vector>

namespace tandem::test {

using Numbers = std::vector<double>;

/// df/dx of a scalar function, element by element.
inline Numbers differences(const std::function<double(const Numbers&)>& f, Numbers x) {
  constexpr double kStep = 1e-5;
  Numbers gradient;
  for (double& at : x) {
    const double before = at;
    at = before + kStep;
    const double above = f(x);
    at = before - kStep;
    gradient.push_back((above - f(x)) / (2 * kStep));
    at = before;
  }
  return gradient;
}

/// Of references, which round their results to f32, against central differences of functions with
/// derivatives near 1: the step's square, and double's spacing over the step.
inline constexpr double kDifferenceTolerance = 2e-6;

}  // namespace tandem::test
