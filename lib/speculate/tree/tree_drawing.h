#pragma once
#include <string>

#include "speculate/tree/token_tree.h"

namespace tandem::speculate {

/// The tree as an SVG image: levels from top to bottom, children left to right in the order in
/// which they are tried, leaves evenly apart, parents above the middle of their children. The area
/// of a node is the probability that a round reaches it, which its tooltip tells; a small tree has
/// it written beside the node.
std::string tree_svg(const TokenTree& tree, const AcceptanceVector& acceptance);

/// The tree in the language of Graphviz, one line a node and an edge: nodes are labelled with the
/// probability that a round reaches them, edges with the child's position from 1.
std::string tree_dot(const TokenTree& tree, const AcceptanceVector& acceptance);

}  // namespace tandem::speculate
