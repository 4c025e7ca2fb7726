#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kv/step.h"
#include "speculate/plan/drafter_kinds.h"
#include "speculate/plan/named_draft.h"
#include "speculate/plan/proposals.h"
#include "speculate/round/rounds.h"
#include "speculate/tree/acceptance.h"
#include "speculate/tree/token_tree.h"

namespace tandem::bench {

/// Section `tree`: the grid of whose points the best trees are measured.
struct TreeGrid {
  std::vector<int> sizes = {128}, levels = {10};
  std::optional<int> max_branch;

  template <class V>
  void fields(V& v) {
    v("sizes", sizes, recipe::between(2, kv::kMaxTreeRows).unit("nodes"),
      "tree sizes, including the root");
    v("levels", levels, recipe::at_least(2), "maximum numbers of levels, including the root's");
    v("max_branch", max_branch, recipe::at_least(1),
      "maximum number of children per node, null = the vector's length");
  }
};

/// Rounds within a round: what proposes and what verifies in them.
struct NestedWay {
  speculate::NamedDraft self, small;
  speculate::TokenTree tree = speculate::chain_tree(2);  // that small proposes
  speculate::NestedShape shape = {};
  std::optional<speculate::AcceptanceVector> acceptance = {};  // of it, by self

  /// Of a nested draft among those that its names are of (check_drafts).
  static NestedWay of(const speculate::NamedDraft& nested,
                      const std::vector<speculate::NamedDraft>& drafts);
  bool looks_up() const { return small.kind == speculate::DraftKind::ngram; }
  /// The chains that they make, the longest.
  speculate::TokenTree chain() const {
    return speculate::chain_tree(1 + shape.most(tree.levels()));
  }
};

/// A way to decode: plainly, by chains of drafted tokens, or by trees of them.
struct Way {
  speculate::NamedDraft draft;
  speculate::TokenTree tree = speculate::chain_tree(1);  // proposed; the root alone: plain decoding
  std::optional<speculate::AcceptanceVector> acceptance = {};  // that the tree is expected to have
  bool simulated = false;                                      // accepted paths are drawn from it
  bool chooses = false;                  // of chains: each round how long one is, `tree` at most
  std::optional<NestedWay> nested = {};  // that make the chain, `tree` at most

  bool is_plain() const { return tree.size() == 1; }
  /// What the draft model proposes, within or alone, and whether that has branches.
  const speculate::NamedDraft& proposer() const { return nested ? nested->small : draft; }
  const speculate::TokenTree& proposal() const { return nested ? nested->tree : tree; }
  bool grows_trees() const { return !draft.tree.empty(); }
  bool is_chain() const { return nested || draft.tree.empty(); }
  /// Drafted tokens of a chain, at most, or of a tree's longest path.
  int gamma() const { return tree.levels() - 1; }
  /// "gamma 3", "gamma auto", or "tree 16x5": nodes and levels.
  std::string shape() const;
  /// "plain", "s256 gamma 3", or "pair tree 16x5".
  std::string name() const;
  /// Tokens of a round by `acceptance`, which there must be.
  double expected_tokens() const;
};

/// What a draft proposes in place of chains: the tree of its file, or the best trees of the grid,
/// each once.
/// note     gets what there is to say about points of the grid without a tree
/// errors   kind input: the tree or the vector
std::vector<speculate::TokenTree> trees_of(const speculate::NamedDraft& draft, const TreeGrid& grid,
                                           const speculate::AcceptSection& accept,
                                           const std::function<void(std::string)>& note);

/// The acceptance that is known before the measurement: of trees the vector, where it is named;
/// else, where it is to be simulated, the draft's alpha.
/// errors   kind recipe: prompt lookup, whose acceptance nothing simulates; no alpha is known; kind
///          input: the vector
std::optional<speculate::AcceptanceVector> known_acceptance(const speculate::NamedDraft& draft,
                                                            const speculate::AcceptSection& accept,
                                                            double context, bool simulates);

}  // namespace tandem::bench
