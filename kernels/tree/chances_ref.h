#pragma once
// What the rules of rules_ref.h make of each node, as probabilities over the coins alone. None of
// it depends on later siblings or on descendants, so all parts of a tree share it.
#include <vector>

#include "kernels/tree/rules_ref.h"

namespace tandem {

struct NodeChances {
  // By sequences: what a visit of the node starts with, and what its parent is left with after it
  // and the siblings before. The path ends at a visited node with the former probability if it has
  // no child, else with the latter of its last child; the coins of nodes are independent.
  double reach = 0, rest = 0;
  double take = 0;   // by nodes: that it is the accepted child of its parent
  double draft = 0;  // what it was drawn with, given the siblings before
};

/// One parent's children, tried in order, under one rule.
template <class Tree>
class Trial {
 public:
  Trial(const Tree& tree, double p, const Distribution<double>& target)
      : tree_(tree), left_{p, target} {}

  /// Takes the next child out, drawn as x from d; returns what it is reached with.
  double next(const Distribution<double>& d, size_t x) {
    if (left_.p == 0) return 0;
    const double reach = reach_of(left_, d, x);
    auto rest = RestOf()(left_, d, [&](double y) { return tree_.is_nothing(y); });
    if (!rest && reach > 0) {
      left_.p = 0;
      return 1;
    }
    if (rest) left_ = std::move(*rest);
    return reach;
  }
  /// What the parent is left with.
  double p() const { return left_.p; }

 private:
  const Tree& tree_;
  Left<double> left_;
};

/// Tree      of rules_ref.h, nodes breadth first; decide is not asked for
/// Returns them by node, nothing if a row has no meaning.
template <class Tree>
std::vector<NodeChances> node_chances(const Tree& tree, int n_nodes) {
  std::vector<NodeChances> all(static_cast<size_t>(n_nodes));
  all[0] = {.reach = 1, .rest = 1, .take = 1, .draft = 1};
  for (int node = 0; node < n_nodes; ++node) {
    const NodeChances& own = all[static_cast<size_t>(node)];
    if (tree.n_children(node) == 0) continue;
    const Distribution<double> target = tree.target(node);
    if (target.empty()) return {};
    Trial<Tree> by_sequences(tree, own.reach, target), by_nodes(tree, 1, target);
    double open = 1;
    for (int i = 0; i < tree.n_children(node); ++i) {
      const Distribution<double> d = tree.proposal(node, i);
      if (d.empty()) return {};
      const int child = tree.child(node, i);
      const auto x = static_cast<size_t>(tree.token(child));
      NodeChances& c = all[static_cast<size_t>(child)];
      c.draft = d[x];
      c.reach = by_sequences.next(d, x);
      c.rest = by_sequences.p();
      const double reach = by_nodes.next(d, x);
      c.take = open * reach;
      open *= 1 - reach;
    }
  }
  return all;
}

}  // namespace tandem
