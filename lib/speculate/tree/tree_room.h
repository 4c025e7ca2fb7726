#pragma once
#include "speculate/tree/token_tree.h"

namespace tandem::speculate {

/// What trees take room for, at most. Nodes of the deepest level are drawn, but nothing is drawn
/// from them.
struct TreeRoom {
  int nodes = 1;
  int levels = 1;
  int inner = 1;    // nodes above the deepest level, the root at least
  int parents = 0;  // nodes with children
  int widest = 1;   // nodes of one level above the deepest

  static TreeRoom of(const TokenTree& tree);
  /// For any tree of at most `nodes` nodes.
  static TreeRoom any(int nodes);
  /// For trees of either.
  TreeRoom with(const TreeRoom& other) const;
};

}  // namespace tandem::speculate
