#include "speculate/plan/round_times.h"

#include <algorithm>

#include "base/check.h"
#include "speculate/plan/chain_tokens.h"

namespace tandem::speculate {

double RoundTimes::round_s(int gamma) const {
  TANDEM_CHECK(gamma >= 0 && gamma <= most_gamma(), "gamma {} is out of range, the largest is {}",
               gamma, most_gamma());
  if (gamma == 0) return plain_s;
  return gamma * draft_s + verify_s[static_cast<size_t>(gamma) - 1] + host_s;
}

GammaChoice at_gamma(const RoundTimes& times, int gamma, double alpha) {
  GammaChoice c{
      .gamma = gamma, .tokens = chain_tokens(gamma, alpha), .round_s = times.round_s(gamma)};
  c.token_s = c.round_s / c.tokens + (gamma > 0 ? times.token_s : 0);
  c.speedup = times.plain_s / c.token_s;
  return c;
}

GammaChoice best_chain(const RoundTimes& times, double alpha) {
  GammaChoice best = at_gamma(times, std::min(1, times.most_gamma()), alpha);
  for (int gamma = 2; gamma <= times.most_gamma(); ++gamma)
    if (const GammaChoice c = at_gamma(times, gamma, alpha); c.speedup > best.speedup) best = c;
  return best;
}

GammaChoice best_gamma(const RoundTimes& times, double alpha) {
  const GammaChoice chain = best_chain(times, alpha);
  return chain.speedup > 1 ? chain : at_gamma(times, 0, alpha);
}

std::optional<LeastAlpha> least_alpha(const RoundTimes& times, double speedup) {
  const double budget_s = times.plain_s / speedup - times.token_s;  // of a token's share of a round
  std::optional<LeastAlpha> least;
  if (budget_s <= 0) return least;
  for (int gamma = 1; gamma <= times.most_gamma(); ++gamma)
    if (const auto alpha = alpha_for(gamma, times.round_s(gamma) / budget_s);
        alpha && (!least || *alpha < least->alpha))
      least = {*alpha, gamma};
  return least;
}

}  // namespace tandem::speculate
