#include "speculate/plan/gamma_choice.h"

#include <algorithm>

#include "speculate/plan/chain_tokens.h"

namespace tandem::speculate {
namespace {

/// Equal speed-ups may differ in the last bits of their sums; they do not exceed each other.
bool exceeds(double speedup, double other) { return speedup > other * (1 + 1e-12); }

/// The shortest context from which on `holds` does, to 1 %. Contexts are tried from the longest
/// down: what holds once at a short context, and not after it, does not count.
std::optional<double> holds_from(double longest, const std::function<bool(double)>& holds) {
  if (!holds(longest)) return std::nullopt;
  double good = longest;
  double bad = 0;
  while (good > 1) {
    const double shorter = good / 1.25;
    if (!holds(shorter)) {
      bad = shorter;
      break;
    }
    good = shorter;
  }
  while (bad > 0 && good > 1.01 * bad) {
    const double middle = 0.5 * (good + bad);
    (holds(middle) ? good : bad) = middle;
  }
  return bad > 0 ? good : 1;
}

}  // namespace

GammaChoice at_gamma(const StepCost& cost, int gamma, double alpha) {
  GammaChoice c{.gamma = gamma, .tokens = chain_tokens(gamma, alpha)};
  c.round_ms = gamma > 0 ? cost.chain(gamma).total_ms() : cost.plain_ms();
  c.token_ms = c.round_ms / c.tokens + (gamma > 0 ? cost.token_ms : 0);
  c.speedup = cost.plain_ms() / c.token_ms;
  return c;
}

GammaChoice best_chain(const StepCost& cost, double alpha) {
  GammaChoice best = at_gamma(cost, std::min(1, cost.most_gamma()), alpha);
  for (int gamma = 2; gamma <= cost.most_gamma(); ++gamma)
    if (const GammaChoice c = at_gamma(cost, gamma, alpha); exceeds(c.speedup, best.speedup))
      best = c;
  return best;
}

GammaChoice best_gamma(const StepCost& cost, double alpha) {
  const GammaChoice chain = best_chain(cost, alpha);
  return exceeds(chain.speedup, 1) ? chain : at_gamma(cost, 0, alpha);
}

std::optional<LeastAlpha> least_alpha(const StepCost& cost, double speedup) {
  const double budget_ms =
      cost.plain_ms() / speedup - cost.token_ms;  // of a token's share of a round
  std::optional<LeastAlpha> least;
  if (budget_ms <= 0) return least;
  for (int gamma = 1; gamma <= cost.most_gamma(); ++gamma)
    if (const auto alpha = alpha_for(gamma, cost.chain(gamma).total_ms() / budget_ms);
        alpha && (!least || *alpha < least->alpha))
      least = {*alpha, gamma};
  return least;
}

std::optional<double> pays_from(const CostAt& cost, double alpha, int batch, double longest) {
  return holds_from(longest, [&](double context) {
    return exceeds(best_chain(cost({batch, context}), alpha).speedup, 1);
  });
}

std::optional<double> inflection_context(const CostAt& cost, double alpha, const Batches& batches,
                                         double longest) {
  const auto speedup = [&](int batch, double context) {
    return best_chain(cost({batch, context}), alpha).speedup;
  };
  return holds_from(longest, [&](double context) {
    return !exceeds(speedup(batches.small, context), speedup(batches.large, context));
  });
}

}  // namespace tandem::speculate
