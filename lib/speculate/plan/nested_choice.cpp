#include "speculate/plan/nested_choice.h"

#include <algorithm>

#include "base/check.h"
#include "speculate/plan/nested_tokens.h"
#include "speculate/tree/tree_choice.h"

namespace tandem::speculate {
namespace {

double round_ms(const TokenTree& tree, const TimeBucket& times, double overhead_ms,
                bool skip_deepest) {
  // A round of one token costs what a token does.
  return price_tree(tree, 1.0, times, overhead_ms, skip_deepest).cost.ms_per_token;
}

class Chooser {
 public:
  explicit Chooser(const NestedTimes& times) : times_(times) {}

  RoundChoices choose(const NestedOptions& options) {
    add({.kind = RoundKind::plain, .round_ms = times_.plain_ms()});
    add_drafts(RoundKind::small, options.small, times_.inner.draft);
    add_drafts(RoundKind::retrieval, options.retrieval, times_.outer.draft);
    TANDEM_CHECK(options.inside.trees.empty() || !options.retrieval.acceptance.rows.empty(),
                 "nested speculation needs the acceptance of its outer steps");
    for (const TokenTree& tree : options.inside.trees)
      for (const int enough : options.enough) add_nested(tree, enough, options);
    return std::move(choices_);
  }

 private:
  void add_drafts(RoundKind kind, const Proposals& proposals, const TimeCurve& draft) {
    TimeBucket times = times_.outer;
    times.draft = draft;
    for (const TokenTree& tree : proposals.trees)
      add({.kind = kind,
           .tree = tree,
           .tokens = expected_tokens(tree, proposals.acceptance),
           .round_ms = round_ms(tree, times, times_.outer_overhead_ms, times_.skip_deepest)});
  }

  void add_nested(const TokenTree& tree, int enough, const NestedOptions& options) {
    const auto growth = grow_chains(round_tokens(tree, options.inside.acceptance), enough, enough);
    const std::vector<double> by_length =
        tokens_by_length(growth.back().longest(), options.retrieval.acceptance);
    const double inner_ms =
        round_ms(tree, times_.inner, times_.inner_overhead_ms, times_.skip_deepest);
    const auto add_rounds = [&](int rounds, double run, const TentativeChain& chain) {
      add({.kind = RoundKind::nested,
           .tree = tree,
           .enough = enough,
           .rounds = rounds,
           .inner_rounds = run,
           .chain_tokens = mean(chain.tokens),
           .tokens = nested_tokens(chain, by_length),
           .round_ms = run * inner_ms + times_.outer.target.at(chain.longest() + 1) +
                       times_.outer_overhead_ms});
    };
    if (options.rounds.empty())
      add_rounds(0, rounds_until_all(growth, times_.outer.batch), growth.back());
    for (int rounds : options.rounds) {
      rounds = std::min(rounds, enough);
      add_rounds(rounds, rounds, growth[static_cast<size_t>(rounds) - 1]);
    }
  }

  void add(RoundChoice choice) {
    const bool retrieves = choice.kind == RoundKind::retrieval || choice.kind == RoundKind::nested;
    choice.token_ms = choice.round_ms / choice.tokens + (retrieves ? times_.token_ms : 0);
    choice.speedup = times_.plain_ms() / choice.token_ms;
    std::optional<RoundChoice>& best = choices_.best_of[static_cast<size_t>(choice.kind)];
    if (!best || choice.speedup > best->speedup) best = std::move(choice);
  }

  const NestedTimes& times_;
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

RoundChoices choose_rounds(const NestedTimes& times, const NestedOptions& options) {
  return Chooser(times).choose(options);
}

}  // namespace tandem::speculate
