#pragma once
#include <limits>
#include <memory>

#include "base/interrupt.h"
#include "speculate/tree/tree_choice.h"
#include "speculate/tree/tree_replay.h"

namespace tandem::speculate {

/// A shape found by replay, next to the one it is compared with.
struct FoundShape {
  int size = 1;
  SubShape start, best;                    // Sequoia's, and the one chosen
  MeanOfRounds start_tokens, best_tokens;  // of the rounds held out
  MeanOfRounds gain;                       // of `best` over `start` in them
  double searched_tokens = 0;              // of `best` in the rounds that were searched
  int moves = 0;                           // of single leaves
};

/// Searches the parts of a recorded tree that give the most tokens by a rule whose acceptance is no
/// product of rates. A third of the texts is held out: it decides where climbing ends and which
/// start is kept, so that noise of the other rounds is not followed.
class ShapeSearch {
 public:
  struct Bounds {
    int max_levels = std::numeric_limits<int>::max();  // the root's counts
    int max_branch = std::numeric_limits<int>::max();  // children of a node
  };

  /// errors   kind input at `where`: fewer than 2 texts
  ShapeSearch(const TreeRounds& rounds, AcceptBy rule, const std::string& where,
              Interrupted interrupted = {});

  /// Nodes of the recorded tree within bounds: the largest size.
  int largest(const Bounds& bounds) const;
  const TreeReplay& all() const { return all_; }

  /// The shape of the greatest sum of Sequoia's scores, measured node by node: the tree of the
  /// dynamic programme for acceptance that depends on the node.
  SubShape by_scores(int size, const Bounds& bounds) const;
  /// The node that adds most, again and again.
  SubShape grow(int size, const Bounds& bounds) const;
  /// Grows up to the size; sees each shape on the way.
  void grow(int size, const Bounds& bounds,
            const std::function<void(const SubShape&)>& on_shape) const;
  /// Moves single leaves while that helps.
  SubShape climb(SubShape shape, const Bounds& bounds, int* moves = nullptr) const;
  /// The best of climbs from `start` (by_scores where there is none), from the grown shape and
  /// from a chain.
  /// size     from 2 to largest(bounds)
  FoundShape find(int size, const Bounds& bounds, const std::optional<SubShape>& start = {}) const;

  /// The cheapest a token by a machine's times, of `sizes` and all bounds of levels: the grown
  /// shapes say which are promising, the best of these climb.
  struct Choice {
    PricedTree best;
    SubShape shape;
  };
  Choice choose(std::span<const int> sizes, const Bounds& bounds, const StepCost& steps) const;

 private:
  struct Frontier {
    std::vector<int> leaves;   // nodes that can go: last children without children
    std::vector<int> parents;  // nodes that can have one more
  };
  Frontier frontier_of(const SubShape& shape, const Bounds& bounds) const;
  /// The best move of one leaf, if any raises the tokens of the searched rounds.
  std::optional<SubShape> best_move(const SubShape& shape, double tokens,
                                    const Bounds& bounds) const;

  TreeReplay all_, searched_, held_out_;
  Interrupted interrupted_;
};

}  // namespace tandem::speculate
