#pragma once
#include <vector>

#include "speculate/tree/acceptance.h"
#include "speculate/tree/token_tree.h"

namespace tandem::speculate {

/// Nodes in the order in which best-first search takes them: the first n are a tree of n nodes.
struct BestFirst {
  std::vector<int> parents;      // as tree_of_parents takes them
  std::vector<double> expected;  // [n - 1]: expected tokens of the tree of the first n nodes
  int levels = 1;                // of the whole

  TokenTree tree(int size) const {
    return tree_of_parents({parents.data(), static_cast<size_t>(size)});
  }
};

/// Takes the node of the highest score, then offers its first child and its next sibling. Optimal
/// for every size where no row of the vector rises: scores then fall along both relations, so the
/// best n nodes are a tree. Otherwise a low sibling may hide a good one.
/// max_size  nodes at most; fewer come out where the bounds allow no more
/// max_levels  levels at most, the root's included
/// cost     O(n log n) time, O(n) memory
/// source   Sequoia, where the reference program runs the dynamic programme instead
BestFirst grow_best_first(const AcceptanceVector& acceptance, int max_size, int max_levels);

}  // namespace tandem::speculate
