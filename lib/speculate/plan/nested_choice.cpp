#include "speculate/plan/nested_choice.h"

#include <algorithm>

#include "base/check.h"
#include "speculate/plan/nested_tokens.h"

namespace tandem::speculate {
namespace {

class Chooser {
 public:
  explicit Chooser(const NestedCost& cost) : cost_(cost) {}

  RoundChoices choose(const NestedOptions& options) {
    add({.kind = RoundKind::plain, .round_ms = cost_.outer.plain_ms()});
    add_drafts(RoundKind::small, options.small, cost_.inner.draft);
    add_drafts(RoundKind::retrieval, options.retrieval, cost_.outer.draft);
    TANDEM_CHECK(options.inside.trees.empty() || !options.retrieval.acceptance.rows.empty(),
                 "nested speculation needs the acceptance of its outer steps");
    for (const TokenTree& tree : options.inside.trees)
      for (const int enough : options.enough) add_nested(tree, enough, options);
    return std::move(choices_);
  }

 private:
  void add_drafts(RoundKind kind, const Proposals& proposals, const TimeCurve& draft) {
    StepCost cost = cost_.outer;
    cost.draft = draft;
    for (const TokenTree& tree : proposals.trees)
      add({.kind = kind,
           .tree = tree,
           .tokens = expected_tokens(tree, proposals.acceptance),
           .round_ms = cost.round(tree.widths()).total_ms()});
  }

  void add_nested(const TokenTree& tree, int enough, const NestedOptions& options) {
    const auto growth = grow_chains(round_tokens(tree, options.inside.acceptance), enough, enough);
    const std::vector<double> by_length =
        tokens_by_length(growth.back().longest(), options.retrieval.acceptance);
    const double inner_ms = cost_.inner.round(tree.widths()).total_ms();
    const auto add_rounds = [&](int rounds, double run, const TentativeChain& chain) {
      add({.kind = RoundKind::nested,
           .tree = tree,
           .enough = enough,
           .rounds = rounds,
           .inner_rounds = run,
           .chain_tokens = mean(chain.tokens),
           .tokens = nested_tokens(chain, by_length),
           .round_ms = run * inner_ms + cost_.outer.target.at(chain.longest() + 1) +
                       cost_.outer.overhead_ms});
    };
    if (options.rounds.empty())
      add_rounds(0, rounds_until_all(growth, cost_.outer.batch), growth.back());
    for (int rounds : options.rounds) {
      rounds = std::min(rounds, enough);
      add_rounds(rounds, rounds, growth[static_cast<size_t>(rounds) - 1]);
    }
  }

  void add(RoundChoice choice) {
    const bool retrieves = choice.kind == RoundKind::retrieval || choice.kind == RoundKind::nested;
    choice.token_ms = choice.round_ms / choice.tokens + (retrieves ? cost_.outer.token_ms : 0);
    choice.speedup = cost_.outer.plain_ms() / choice.token_ms;
    std::optional<RoundChoice>& best = choices_.best_of[static_cast<size_t>(choice.kind)];
    if (!best || choice.speedup > best->speedup) best = std::move(choice);
  }

  const NestedCost& cost_;
  RoundChoices choices_;
};

}  // namespace

Proposals chain_proposals(int most_gamma, double alpha) {
  Proposals chains;
  for (int gamma = 1; gamma <= most_gamma; ++gamma) chains.trees.push_back(chain_tree(gamma + 1));
  chains.acceptance.rows = {{alpha}};
  return chains;
}

const RoundChoice& RoundChoices::best() const {
  const RoundChoice* best = &*of(RoundKind::plain);
  for (const std::optional<RoundChoice>& choice : best_of)
    if (choice && choice->speedup > best->speedup) best = &*choice;
  return *best;
}

RoundChoices choose_rounds(const NestedCost& cost, const NestedOptions& options) {
  return Chooser(cost).choose(options);
}

}  // namespace tandem::speculate
