#include "speculate/tree/token_tree.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace tandem::speculate {

std::vector<int> TokenTree::widths() const {
  std::vector<int> list;
  for (size_t l = 0; l + 1 < level_begin.size(); ++l)
    list.push_back(level_begin[l + 1] - level_begin[l]);
  return list;
}

TokenTree tree_of_children(std::span<const int> n_children, const std::string& where) {
  if (n_children.empty()) throw input_error(where, "expected at least a root, found no nodes");
  TokenTree t;
  t.n_children.assign(n_children.begin(), n_children.end());
  t.parent = {-1};
  t.depth = {0};
  t.child_index = {0};
  const size_t size = n_children.size();
  for (size_t v = 0; v < size; ++v) {
    if (v >= t.parent.size())
      throw input_error(where, "node {} of {} has no parent: nodes 0 to {} have {} children", v,
                        size, v - 1, v - 1)
          .hint("list the number of children of every node, level by level");
    if (n_children[v] < 0)
      throw input_error(where, "node {} has {} children, expected 0 or more", v, n_children[v]);
    if (static_cast<size_t>(n_children[v]) > size - t.parent.size())
      throw input_error(where, "node {} has {} children, but only {} of {} nodes are left", v,
                        n_children[v], size - t.parent.size(), size)
          .hint("the numbers of children must add up to the number of nodes minus 1");
    t.first_child.push_back(static_cast<int>(t.parent.size()));
    for (int k = 0; k < n_children[v]; ++k) {
      t.parent.push_back(static_cast<int>(v));
      t.depth.push_back(t.depth[v] + 1);
      t.child_index.push_back(k);
    }
  }
  for (int v = 0; v < t.size(); ++v)
    if (v == 0 || t.depth[static_cast<size_t>(v)] != t.depth[static_cast<size_t>(v) - 1])
      t.level_begin.push_back(v);
  t.level_begin.push_back(t.size());
  return t;
}

TokenTree tree_of_parents(std::span<const int> parents) {
  std::vector<std::vector<size_t>> children(parents.size());
  for (size_t v = 1; v < parents.size(); ++v) {
    TANDEM_CHECK(parents[v] >= 0 && static_cast<size_t>(parents[v]) < v,
                 "node {} comes before its parent {}", v, parents[v]);
    children[static_cast<size_t>(parents[v])].push_back(v);
  }
  std::vector<size_t> order = {0};
  std::vector<int> n_children;
  for (size_t i = 0; i < order.size(); ++i) {
    const auto& own = children[order[i]];
    n_children.push_back(static_cast<int>(own.size()));
    order.insert(order.end(), own.begin(), own.end());
  }
  return tree_of_children(n_children, "tree");
}

TokenTree star_tree(int children) {
  std::vector<int> n_children(static_cast<size_t>(children) + 1);
  n_children[0] = children;
  return tree_of_children(n_children, "a star");
}

TokenTree chain_tree(int nodes) {
  std::vector<int> n_children(static_cast<size_t>(nodes), 1);
  n_children.back() = 0;
  return tree_of_children(n_children, "chain");
}

TokenTree beam_tree(int width, int gamma) {
  std::vector<int> n_children(static_cast<size_t>(1 + width * gamma), 1);
  n_children.front() = gamma > 0 ? width : 0;
  if (gamma > 0) std::fill(n_children.end() - width, n_children.end(), 0);
  return tree_of_children(n_children, "beams");
}

std::vector<uint64_t> ancestor_bits(const TokenTree& tree) {
  const size_t size = tree.parent.size(), words = (size + 63) / 64;
  std::vector<uint64_t> bits(size * words);
  for (size_t v = 0; v < size; ++v) {
    uint64_t* row = &bits[v * words];
    if (v > 0) std::copy_n(&bits[static_cast<size_t>(tree.parent[v]) * words], words, row);
    row[v / 64] |= uint64_t{1} << (v % 64);
  }
  return bits;
}

int refused_children(const TokenTree& tree, std::span<const int32_t> path, int drafted) {
  int node = 0, refused = 0;
  const auto first_child = [&] { return tree.first_child[static_cast<size_t>(node)]; };
  for (const int32_t next : path) {
    refused += next - first_child();
    node = next;
  }
  const int n = tree.n_children[static_cast<size_t>(node)];
  return n > 0 && first_child() <= drafted ? refused + n : refused;
}

int shallowest_leaf(const TokenTree& tree) {
  int least = tree.levels();
  for (size_t i = 0; i < tree.depth.size(); ++i)
    if (tree.n_children[i] == 0) least = std::min(least, tree.depth[i]);
  return least;
}

std::vector<double> node_scores(const TokenTree& tree, const AcceptanceVector& acceptance) {
  std::vector<double> scores(tree.parent.size(), 1.0);
  for (size_t v = 1; v < scores.size(); ++v) {
    const auto parent = static_cast<size_t>(tree.parent[v]);
    const auto& row = acceptance.row(tree.depth[parent]);
    const auto k = static_cast<size_t>(tree.child_index[v]);
    scores[v] = k < row.size() ? scores[parent] * row[k] : 0.0;
  }
  return scores;
}

double expected_tokens(const TokenTree& tree, const AcceptanceVector& acceptance) {
  const auto scores = node_scores(tree, acceptance);
  return std::accumulate(scores.begin(), scores.end(), 0.0);
}

}  // namespace tandem::speculate
