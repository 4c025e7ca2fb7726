#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "speculate/tree/acceptance.h"

namespace tandem::speculate {

/// The static shape of a tree of draft tokens. Node 0 is the root, the last committed token, which
/// is not speculated; it counts in the size and as the first level. Nodes are numbered breadth
/// first: level by level, parents in order, the children of a parent side by side in the order in
/// which verification tries them.
/// layout   plain arrays, one entry a node unless said otherwise
struct TokenTree {
  std::vector<int> parent;       // -1 for the root, else smaller than the node
  std::vector<int> depth;        // root 0
  std::vector<int> child_index;  // place among its siblings from 0: entry of the acceptance vector
  std::vector<int> n_children;   // the complete shape: all else follows from it
  std::vector<int> first_child;  // children are first_child .. first_child + n_children - 1
  std::vector<int> level_begin;  // [levels + 1]; nodes of level l are level_begin[l] .. [l + 1] - 1

  int size() const { return static_cast<int>(parent.size()); }
  int levels() const { return static_cast<int>(level_begin.size()) - 1; }
  /// Nodes of each level.
  std::vector<int> widths() const;
};

/// The tree with these numbers of children, nodes in breadth-first order.
/// errors   kind input at `where`: no node, a negative number, children that the list lacks or has
///          too many of
TokenTree tree_of_children(std::span<const int> n_children, const std::string& where);

/// The tree in which node i hangs under parents[i]: a parent stands before its children, siblings
/// in the order in which they are tried, parents[0] is -1. Nodes are renumbered breadth first.
TokenTree tree_of_parents(std::span<const int> parents);

/// A chain of `nodes` nodes, at least 1.
TokenTree chain_tree(int nodes);
/// A root and its children.
TokenTree star_tree(int children);

/// The nodes of `width` beams of `gamma` tokens: 1, and then gamma levels of `width`. Which node of
/// the level above each hangs under, kernels/tree/grow_beams.h says as they are drafted; here they
/// make chains side by side.
TokenTree beam_tree(int width, int gamma);

/// Bit j of row i: node j is i or an ancestor of it, so that i attends to it.
/// shapes   [size][ceil(size / 64)] words, the lowest bit first
std::vector<uint64_t> ancestor_bits(const TokenTree& tree);

/// Children that were tried and refused: siblings before each accepted node, and all children of
/// the last one.
/// path     accepted nodes, the root left out
/// drafted  nodes below the root that were proposed
int refused_children(const TokenTree& tree, std::span<const int32_t> path, int drafted);

/// The least depth of a node without children.
int shallowest_leaf(const TokenTree& tree);

/// Of each node the probability that a round reaches it: the product of `acceptance` along its path
/// (Sequoia, definition 3.3). Children beyond the vector are never accepted.
std::vector<double> node_scores(const TokenTree& tree, const AcceptanceVector& acceptance);

/// Tokens that a round yields on average, the one after the accepted path included: the sum of
/// node_scores (Sequoia, proposition 3.4).
double expected_tokens(const TokenTree& tree, const AcceptanceVector& acceptance);

}  // namespace tandem::speculate
