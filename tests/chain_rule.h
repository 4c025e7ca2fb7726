#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "changed_drafter.h"
#include "decode/engine.h"
#include "kernels/tree/ref_distributions.h"

namespace tandem::test {

/// The rule `sequoia` of chains, and what may be wrong with it.
struct ChainRule {
  double acceptance = 1;         // times the probability that a token is accepted with
  double draft_temperature = 1;  // times the temperature that tokens were drawn at
  bool normalizes = true;        // the residual that a token is drawn from after a refusal
  bool subtracts = true;         // draws from the rest after a refusal, or else from the whole
  bool tosses = true;            // a number for the residual, or else the coin of the refusal again
  bool keeps_bonus = true;  // the token after the accepted ones, or else drops it if others are
  bool reads_leaf = true;   // the row of the last token after a full chain, or the one before
};

inline int32_t drawn_from(const std::vector<double>& weights, double uniform, bool normalizes) {
  double sum = 0;
  for (const double w : weights) sum += w;
  double left = uniform * (normalizes ? sum : 1);
  for (size_t i = 0; i < weights.size(); ++i)
    if ((left -= weights[i]) < 0) return static_cast<int32_t>(i);
  return static_cast<int32_t>(std::ranges::max_element(weights) - weights.begin());
}

inline void verify_chain(const VerifyTreesParams& params, const ChainRule& rule,
                         PhiloxStream& rng) {
  VerifyTreesParams other = params;
  other.draft.temperature *= static_cast<float>(rule.draft_temperature);
  for (int b = 0; b < params.n_seqs; ++b) {
    const RefDistributions tree(other, b);
    const int32_t first = params.node_begin[b];
    int node = 0;
    double coin = 0;
    std::vector<double> p;
    bool refused = false;
    while (p = tree.target(node), tree.n_children(node) > 0) {
      const std::vector<double> q = tree.proposal(node, 0);
      const int child = tree.child(node, 0);
      const auto token = static_cast<size_t>(tree.token(child));
      coin = rng.uniform();
      refused = coin >= rule.acceptance * p[token] / q[token];
      if (refused) {
        for (size_t i = 0; rule.subtracts && i < p.size(); ++i) p[i] = std::max(p[i] - q[i], 0.0);
        break;
      }
      params.path[first + node] = child;
      node = child;
    }
    if (!refused && !rule.reads_leaf && node > 0) p = tree.target(node - 1);
    params.n_accepted[b] = node;
    params.bonus[b] =
        drawn_from(p, rule.tosses || !refused ? rng.uniform() : coin, rule.normalizes);
    if (rule.keeps_bonus || node == 0) continue;
    params.n_accepted[b] = node - 1;
    params.bonus[b] = tree.token(node);
  }
}

/// Verifies proposals of an engine's rounds by that rule.
/// engine   computes the logits that verify
inline ChangedDrafter::Changes verifies_by(decode::Engine& engine, const ChainRule& rule) {
  const auto rng = std::make_shared<PhiloxStream>(7);
  return {.verified = [&engine, rule, rng](speculate::Round& round) {
    const int64_t rows = int64_t{round.places()} * round.tree().size();
    verify_chain(round.verification(engine.logit_rows().slice(0, rows), AcceptBy::sequoia), rule,
                 *rng);
  }};
}

}  // namespace tandem::test
