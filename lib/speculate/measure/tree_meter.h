#pragma once
#include <span>
#include <vector>

#include "ops/verification.h"
#include "speculate/measure/chance_sums.h"
#include "speculate/measure/forced_meter.h"
#include "speculate/tree/token_tree.h"

namespace tandem::speculate {

/// Acceptance by depth in rounds of one tree: of each child that is drawn the exact probability
/// that it is the one accepted is added up, over the coins and over what the child itself is. Far
/// fewer positions are needed than by counting. It reads texts that such rounds wrote, finds again
/// which node each token was, and adds the exact chances of the children of each node that a round
/// came by to the row of its depth. The tree itself decides which positions
/// become roots: a narrow tree restarts after rejections that a wide one would have absorbed, and
/// its deep nodes are in passages that are easy to guess.
/// Leaves are left out, for a tree gains at nodes with children alone. Such rows predict the tokens
/// of this tree, and of trees like it.
class TreeMeter {
 public:
  /// Rows of logits of each model that it keeps at most.
  static constexpr int kRowsAtOnce = 64;

  /// source   Rao-Blackwell's theorem on Sequoia's section 4.1; unbiased on texts that the target
  ///          wrote
  /// rule     that the rounds verify by: by match, of rounds only at temperature 0, children are the
  ///          draft's best tokens, by residual they are drawn by rule.draft
  /// width    children of a node whose chances are measured, at least as many as any has
  /// draft    another model; or of the target's cache, where each position is a root
  TreeMeter(Reader target, Reader draft, const ops::VerifyRule& rule, TokenTree tree, int width);

  /// Adds a text whose tokens from text[first] on rounds wrote, the first of them from the prompt.
  /// seq, seed  of the generation: children are drawn again by their numbers
  /// accepted   nodes of each round in turn; the last may have gone beyond the text's end
  /// errors     kind interrupted, numeric
  void add(int seq, int64_t seed, std::span<const int32_t> text, int first,
           std::span<const int> accepted);

  /// Adds the positions whose next tokens are text[first], text[first + 1], ..., each as the root
  /// of a round.
  void add_positions(int seq, int64_t seed, std::span<const int32_t> text, int first) {
    add(seq, seed, text, first - 1, std::vector<int>(text.size() - static_cast<size_t>(first)));
  }

  /// One for each depth of the tree that has children.
  const std::vector<ChanceSums>& rows() const { return rows_; }
  /// Accepted tokens that the children, drawn again from logits of other forwards, did not hold.
  int64_t lost() const { return lost_; }

 private:
  Reader target_;
  ForcedMeter logits_;
  ops::VerifyRule rule_;
  TokenTree tree_;
  int width_;
  std::vector<ChanceSums> rows_;
  int64_t lost_ = 0;
};

}  // namespace tandem::speculate
