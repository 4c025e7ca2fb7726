#pragma once
#include <optional>
#include <span>
#include <vector>

#include "kernels/tree/verify_trees.h"
#include "speculate/tree/tree_rounds.h"

namespace tandem::speculate {

/// A part of a recorded tree: of each of its nodes, how many of its first children are in; 0 for
/// nodes that are not.
using SubShape = std::vector<int>;

int size_of(const SubShape& shape);
TokenTree tree_of(const SubShape& shape, const TokenTree& recorded);
/// Nullopt if the recorded tree lacks a node of `tree`.
std::optional<SubShape> shape_in(const TokenTree& recorded, const TokenTree& tree);

/// A mean over rounds with its standard error: texts are the samples, since rounds of one text
/// resemble each other.
struct MeanOfRounds {
  double mean = 0, error = 0;
};

/// Replays recorded rounds on parts of their tree: what a rule of verification makes of the very
/// tokens drawn then, in expectation over the coins.
class TreeReplay {
 public:
  /// rule     sequoia, traversal, or block, which is traversal of a chain
  TreeReplay(TreeRounds rounds, AcceptBy rule);

  const TreeRounds& rounds() const { return rounds_; }
  const TokenTree& tree() const { return rounds_.tree; }
  AcceptBy rule() const { return rule_; }

  /// Tokens of each round, the bonus token included.
  /// cost     two multiplications a node and round
  std::vector<double> tokens_by_round(const SubShape& shape) const;
  /// Their mean.
  double tokens(const SubShape& shape) const;
  MeanOfRounds mean_tokens(const SubShape& shape) const;
  /// Of the ratio of two parts' tokens, less 1.
  MeanOfRounds gain(const SubShape& shape, const SubShape& base) const;

  /// Of each node the mean probability that a round by nodes accepts it: Sequoia's score, measured
  /// node by node.
  std::vector<double> sequoia_scores() const;

 private:
  struct Walk;
  void visit(int node, const SubShape& shape, Walk& walk) const;

  TreeRounds rounds_;
  AcceptBy rule_;
  std::vector<std::vector<double>> path_;  // by node and round: that nodes lead to it
};

}  // namespace tandem::speculate
