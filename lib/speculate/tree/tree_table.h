#pragma once
#include <array>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "speculate/tree/tree_dp.h"
#include "speculate/tree/tree_greedy.h"

namespace tandem::speculate {

enum class TreeAlgorithm : uint8_t { automatic, greedy, dp };
constexpr std::array<std::string_view, 3> enum_names(TreeAlgorithm) {
  return {"auto", "greedy", "dp"};
}

/// Sizes 1 .. max_size under bounds of min_levels .. max_levels levels, the root's included.
struct TreeBounds {
  int max_size = 1;
  int min_levels = 1, max_levels = 1;  // at least 1; beyond max_size they bound nothing
};

/// Best-first search for each bound of levels: what TreeProgram is to the dynamic programme.
class GreedyTrees {
 public:
  GreedyTrees(AcceptanceVector acceptance, const TreeBounds& bounds);

  int levels() const { return min_levels_ + static_cast<int>(columns_.size()) - 1; }
  /// min_levels <= levels <= levels()
  const SizeColumn& column(int levels) const {
    return columns_[static_cast<size_t>(levels - min_levels_)];
  }
  TokenTree tree(int size, int levels) const {
    return grow_best_first(acceptance_, size, levels).tree(size);
  }

 private:
  AcceptanceVector acceptance_;
  int min_levels_;
  std::vector<SizeColumn> columns_;
};

/// F(n, l): the best expected tokens of trees of exactly n nodes on at most l levels, for all n and
/// l within bounds, and a tree for each. `automatic` takes best-first search if it is provably
/// optimal for all of them, else the dynamic programme.
class TreeTable {
 public:
  /// acceptance  cut to the children that a node may have
  /// errors   kind interrupted
  TreeTable(const AcceptanceVector& acceptance, const TreeBounds& bounds,
            TreeAlgorithm algorithm = TreeAlgorithm::automatic,
            const Interrupted& interrupted = {});

  /// greedy or dp: the one that ran.
  TreeAlgorithm algorithm() const;
  /// The last bound of levels that changes any value.
  int levels() const;
  /// F(size, levels) for levels >= min_levels, nullopt where there is no such tree. Bounds above
  /// levels() do no more than it.
  std::optional<double> expected(int size, int levels) const;
  /// A tree of that value; there must be one.
  TokenTree tree(int size, int levels) const;

 private:
  std::variant<GreedyTrees, TreeProgram> trees_;
};

}  // namespace tandem::speculate
