#pragma once
#include <memory>
#include <vector>

#include "base/interrupt.h"
#include "speculate/tree/acceptance.h"
#include "speculate/tree/token_tree.h"

namespace tandem::speculate {

/// Best expected tokens of trees by exact size: entry n, for n = 1 .. the largest size that there
/// is a tree of. Entry 0 is unused.
using SizeColumn = std::vector<double>;

/// One step of the dynamic programme: trees whose root's children are accepted by one row, above
/// subtrees of known value.
class TreeLayer {
 public:
  /// below  best value of the subtree under a child, by its size
  TreeLayer(const std::vector<double>& row, const SizeColumn& below, int max_size);

  const SizeColumn& best() const { return best_; }
  /// Sizes of the subtrees under the children of an optimal tree of `size` nodes, left to right.
  /// row, below  those that the layer was made from
  std::vector<int> child_sizes(int size, const std::vector<double>& row,
                               const SizeColumn& below) const;

 private:
  /// T(n, b): trees of n nodes of which the root has b children; -inf where there is none.
  double* values(int b) { return values_.get() + static_cast<size_t>(b) * stride_ + kPadding; }
  const double* values(int b) const {
    return values_.get() + static_cast<size_t>(b) * stride_ + kPadding;
  }

  static constexpr size_t kPadding = 16;  // -inf on both sides, so that whole tiles can be read
  int max_branch_;
  size_t stride_;
  std::unique_ptr<double[]> values_;
  SizeColumn best_;
};

/// The exact optimizer, for any acceptance vector: F(n, l), the best expected tokens over all trees
/// of exactly n nodes on at most l levels, for every n up to `max_size` and l up to `max_levels`.
///   T(n, l, b) = max over m of T(n - m, l, b - 1) + p_b F(m, l - 1),   F(n, l) = max over b of
///   T(n, l, b)
/// where m is the size of the last child's subtree (Sequoia, appendix F.1.1). Of depth rows, row d
/// serves children of depth d; each l then has layers of its own for the rows before the last.
/// cost     n^2 L B / 2 additions at worst; the search of m ends where no larger one can win, which
///          leaves a twentieth for measured vectors. Layers stop where one more level changes
///          nothing. Memory 8 n B bytes a layer of the last row.
class TreeProgram {
 public:
  /// errors   kind interrupted
  TreeProgram(AcceptanceVector acceptance, int max_size, int max_levels,
              const Interrupted& interrupted = {});

  /// The last level bound that changes any value, at most max_levels.
  int levels() const { return static_cast<int>(columns_.size()); }
  /// F(., levels) for levels = 1 .. levels().
  const SizeColumn& column(int levels) const { return columns_[static_cast<size_t>(levels) - 1]; }
  /// An optimal tree; column(levels) has an entry for `size`.
  TokenTree tree(int size, int levels) const;

 private:
  /// F(., remaining) of trees all of whose children are accepted by the last row.
  const SizeColumn& stationary(int remaining) const;
  /// Layers of depths 0 .. before the last row's, for a bound of `levels`; the deepest comes first.
  std::vector<TreeLayer> upper_layers(int levels) const;

  AcceptanceVector acceptance_;
  int max_size_;
  SizeColumn leaf_;                // one level: the root alone
  std::vector<TreeLayer> layers_;  // of the last row: [i] has i + 2 levels
  std::vector<SizeColumn> columns_;
};

}  // namespace tandem::speculate
