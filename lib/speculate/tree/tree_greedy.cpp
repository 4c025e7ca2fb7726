#include "speculate/tree/tree_greedy.h"

#include <algorithm>
#include <queue>
#include <tuple>

namespace tandem::speculate {
namespace {

struct Candidate {
  double score, parent_score;
  int depth, parent, child_index;

  /// Below `other` in the heap. Ties go to the upper level, then to the earlier parent, then to the
  /// left: a parent and a left sibling of equal score come out first.
  bool operator<(const Candidate& other) const {
    if (score != other.score) return score < other.score;
    return std::tie(depth, parent, child_index) >
           std::tie(other.depth, other.parent, other.child_index);
  }
};

}  // namespace

BestFirst grow_best_first(const AcceptanceVector& acceptance, int max_size, int max_levels) {
  BestFirst found;
  std::priority_queue<Candidate> heap;
  heap.push({.score = 1, .parent_score = 1, .depth = 0, .parent = -1, .child_index = 0});
  double expected = 0;
  while (!heap.empty() && static_cast<int>(found.parents.size()) < max_size) {
    const Candidate node = heap.top();
    heap.pop();
    const int id = static_cast<int>(found.parents.size());
    expected += node.score;
    found.parents.push_back(node.parent);
    found.expected.push_back(expected);
    found.levels = std::max(found.levels, node.depth + 1);
    if (node.depth + 1 < max_levels)
      heap.push({.score = node.score * acceptance.row(node.depth)[0],
                 .parent_score = node.score,
                 .depth = node.depth + 1,
                 .parent = id,
                 .child_index = 0});
    if (node.parent < 0) continue;
    const auto& row = acceptance.row(node.depth - 1);
    const int next = node.child_index + 1;
    if (static_cast<size_t>(next) < row.size())
      heap.push({.score = node.parent_score * row[static_cast<size_t>(next)],
                 .parent_score = node.parent_score,
                 .depth = node.depth,
                 .parent = node.parent,
                 .child_index = next});
  }
  return found;
}

}  // namespace tandem::speculate
