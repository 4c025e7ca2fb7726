#include "speculate/plan/chain_tokens.h"

#include <cmath>

namespace tandem::speculate {

double chain_tokens(int gamma, double alpha) {
  // The sum 1 + alpha + ... + alpha^gamma needs no case for alpha = 1.
  double sum = 1;
  for (int i = 0; i < gamma; ++i) sum = 1 + alpha * sum;
  return sum;
}

double chain_tokens(int gamma, std::span<const double> alphas) {
  double sum = 0;
  for (const double alpha : alphas) sum += chain_tokens(gamma, alpha);
  return sum / static_cast<double>(alphas.size());
}

std::optional<double> alpha_for(int gamma, double tokens) {
  if (tokens > gamma + 1) return std::nullopt;
  double low = 0, high = 1;
  if (tokens <= 1) return low;
  // Rising in alpha; 60 halvings reach the last bit of a double.
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    (chain_tokens(gamma, middle) < tokens ? low : high) = middle;
  }
  return high;
}

}  // namespace tandem::speculate
