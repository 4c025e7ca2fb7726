#pragma once
#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "speculate/plan/step_cost.h"
#include "speculate/tree/token_tree.h"

namespace tandem::speculate {

/// How tokens come about, the simplest first.
enum class RoundKind : uint8_t {
  plain,      // a step each
  small,      // the small model drafts for all keys
  retrieval,  // the target under its retrieval drafts for all keys
  nested,     // the small model for the retrieval, whose text all keys verify
};
constexpr std::array<std::string_view, 4> enum_names(RoundKind) {
  return {"plain", "small", "retrieval", "nested"};
}

/// Costs of nested rounds and their parts, for one batch at one context. Tokens that the retrieval
/// drafts pay the share of a rebuild that `outer` has.
struct NestedCost {
  StepCost outer;  // target: the model with all keys; draft: the same under its retrieval
  StepCost inner;  // target: the model under its retrieval; draft: the small model
};

/// Trees that a draft may propose, of two nodes at least, and how often their nodes are accepted.
/// None: it does not draft.
struct Proposals {
  std::vector<TokenTree> trees = {};
  AcceptanceVector acceptance = {};
};

/// Chains of 1 .. most_gamma drafted tokens, each accepted with probability alpha.
Proposals chain_proposals(int most_gamma, double alpha);

/// What rounds are chosen from.
struct NestedOptions {
  Proposals small = {};          // of the small model, verified by all keys
  Proposals retrieval = {};      // of the target under its retrieval; its acceptance, that of first
                                 // children, also holds for tentative chains
  Proposals inside = {};         // of the small model, verified by the retrieval
  std::vector<int> enough = {};  // gamma2
  std::vector<int> rounds = {};  // inner rounds of each nested one, at most as many as are enough;
                                 // none: a loop until all sequences have enough
};

/// Rounds of a kind and what they predict.
struct RoundChoice {
  RoundKind kind = RoundKind::plain;
  TokenTree tree = chain_tree(1);  // proposed, by nested rounds inside
  int enough = 0, rounds = 0;      // nested; rounds 0: a loop
  double inner_rounds = 0;         // nested: that run in one, expected of a loop
  double chain_tokens = 0;         // nested: of a sequence's tentative chain, expected
  double tokens = 1;               // of a sequence and round, expected
  double round_ms = 0;
  double token_ms = 0;  // of a sequence
  double speedup = 1;   // over plain steps
};

/// The best of each kind; none where its draft proposes nothing.
struct RoundChoices {
  std::array<std::optional<RoundChoice>, 4> best_of;  // [RoundKind]

  /// The fastest kind, the simplest of equals.
  const RoundChoice& best() const;
  const std::optional<RoundChoice>& of(RoundKind kind) const {
    return best_of[static_cast<size_t>(kind)];
  }
};

/// Tries all options. Verification of tentative chains has room for the longest one.
/// cost     trees x enough x rounds additions of some 20 numbers
RoundChoices choose_rounds(const NestedCost& cost, const NestedOptions& options);

}  // namespace tandem::speculate
