#include "speculate/tree/tree_table.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/check.h"

namespace tandem::speculate {
namespace {

constexpr double kSame = 1e-12;  // relative; sums of a thousand products round to 1e-14

bool same(const SizeColumn& a, const SizeColumn& b) {
  return std::ranges::equal(
      a, b, [](double x, double y) { return std::abs(x - y) <= kSame * std::abs(y); });
}

AcceptanceVector sorted(AcceptanceVector v) {
  for (auto& row : v.rows) std::ranges::sort(row, std::greater<>());
  return v;
}

/// Best-first search, if it provably reaches the dynamic programme's values for all sizes and
/// bounds. It does for rows that never rise. For others, sorting the rows bounds those values from
/// above: any legal tree scores no less once larger probabilities go to larger subtrees. Where
/// best-first search on the rows as they are reaches that bound, it is optimal.
std::optional<GreedyTrees> optimal_greedy(const AcceptanceVector& v, const TreeBounds& bounds) {
  if (v.non_increasing()) return GreedyTrees(v, bounds);
  const AcceptanceVector bound = sorted(v);
  std::vector<int> levels = {bounds.max_levels};
  for (int l = bounds.min_levels; l < std::min(bounds.max_levels, bounds.max_size); ++l)
    levels.push_back(l);
  // The last bound allows the largest trees, the first ones the widest: most vectors that fail do
  // so at either.
  for (size_t i = 0; i < levels.size(); ++i) {
    const BestFirst found = grow_best_first(v, bounds.max_size, levels[i]);
    const BestFirst most = grow_best_first(bound, bounds.max_size, levels[i]);
    if (!same(found.expected, most.expected)) return std::nullopt;
    const bool bound_met = std::max(found.levels, most.levels) == levels[i];
    if (i > 0 && !bound_met) break;  // nor will those above it be
  }
  return GreedyTrees(v, bounds);
}

std::variant<GreedyTrees, TreeProgram> search(const AcceptanceVector& v, const TreeBounds& bounds,
                                              TreeAlgorithm algorithm,
                                              const Interrupted& interrupted) {
  if (algorithm == TreeAlgorithm::greedy) return GreedyTrees(v, bounds);
  if (algorithm == TreeAlgorithm::automatic)
    if (auto trees = optimal_greedy(v, bounds)) return *std::move(trees);
  return TreeProgram(v, bounds.max_size, bounds.max_levels, interrupted);
}

}  // namespace

GreedyTrees::GreedyTrees(AcceptanceVector acceptance, const TreeBounds& bounds)
    : acceptance_(std::move(acceptance)), min_levels_(bounds.min_levels) {
  for (int l = bounds.min_levels; l <= bounds.max_levels; ++l) {
    const BestFirst found = grow_best_first(acceptance_, bounds.max_size, l);
    // A bound that no node met changes nothing, nor will those above it.
    if (found.levels < l && !columns_.empty()) return;
    SizeColumn& column = columns_.emplace_back(SizeColumn{0});
    column.insert(column.end(), found.expected.begin(), found.expected.end());
    if (found.levels < l) return;
  }
}

TreeTable::TreeTable(const AcceptanceVector& acceptance, const TreeBounds& bounds,
                     TreeAlgorithm algorithm, const Interrupted& interrupted)
    : trees_(search(acceptance, bounds, algorithm, interrupted)) {}

TreeAlgorithm TreeTable::algorithm() const {
  return std::holds_alternative<GreedyTrees>(trees_) ? TreeAlgorithm::greedy : TreeAlgorithm::dp;
}

int TreeTable::levels() const {
  return std::visit([](const auto& trees) { return trees.levels(); }, trees_);
}

std::optional<double> TreeTable::expected(int size, int levels) const {
  return std::visit(
      [&](const auto& trees) -> std::optional<double> {
        const SizeColumn& column = trees.column(std::min(levels, trees.levels()));
        const auto n = static_cast<size_t>(size);
        return n < column.size() ? std::optional(column[n]) : std::nullopt;
      },
      trees_);
}

TokenTree TreeTable::tree(int size, int levels) const {
  TANDEM_CHECK(expected(size, levels).has_value(),
               "the table has no tree of {} nodes with {} levels", size, levels);
  return std::visit(
      [&](const auto& trees) { return trees.tree(size, std::min(levels, trees.levels())); },
      trees_);
}

}  // namespace tandem::speculate
