#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "speculate/tree/tree_file.h"
#include "speculate/tree/tree_table.h"

namespace tandem::speculate {

/// A tree and what its rounds cost.
struct PricedTree {
  int size = 1, levels = 1;
  double expected = 1;  // tokens a round
  RoundCost cost;
};

/// expected  tokens a round
PricedTree price_tree(const TokenTree& tree, double expected, const StepCost& steps);

/// How the choice answers to an error in the times.
struct Sensitivity {
  std::string change;        // "draft x 1.25"
  int size = 1, levels = 1;  // the best tree then
  double loss = 0;           // of keeping the chosen tree: its time over the best one's, less 1
};

struct TreeChoice {
  PricedTree best;
  std::optional<PricedTree> runner_up;  // the best of another size or bound of levels
  std::optional<PricedTree> chain;  // the best tree of one branch, of any size within the bounds
  double plain_ms = 0;              // a token without speculation: the target's time for one
  std::vector<Sensitivity> sensitivity;

  /// plain_ms over the best tree's time; speculation loses where it is not above 1.
  double speedup() const { return plain_ms / best.cost.ms_per_token; }
};

/// The tree of least time per token among `sizes` and all bounds of levels of the table; ties go to
/// the smaller size, then to fewer levels.
/// sizes       rising, within the table and the target's measured counts
/// errors      kind recipe: no tree of any size fits the bounds
/// source   Sequoia, section 4.1; its reference prices every draft call alike
TreeChoice choose_tree(const TreeTable& table, const AcceptanceVector& acceptance,
                       std::span<const int> sizes, int max_levels, const StepCost& steps);

}  // namespace tandem::speculate
