#pragma once
#include <span>

#include "ops/verification.h"
#include "speculate/measure/chance_sums.h"
#include "speculate/measure/pair_logits.h"

namespace tandem::speculate {

/// Estimates the acceptance vector of a pair of models: at every position of a text the draft's
/// children are drawn once, and of each the exact probability that it is the one accepted is added
/// up, over the coins and over what the child itself is. Far fewer positions are needed than by
/// counting.
/// source   Rao-Blackwell's theorem on Sequoia's section 4.1; unbiased on texts that the target wrote
class AcceptanceMeter {
 public:
  /// rule     of verification; by match children are the draft's best tokens, by residual they are drawn
  ///          by rule.draft
  /// width    children of a node, at most the vocabulary
  AcceptanceMeter(decode::Engine& target, decode::Engine& draft, const ops::VerifyRule& rule,
                  int width);

  /// Adds the positions whose next tokens are text[first], text[first + 1], ...
  /// seq      names the random numbers of this text
  /// errors   kind interrupted, numeric
  void add(int seq, int64_t seed, std::span<const int32_t> text, int first);

  const ChanceSums& sums() const { return sums_; }

 private:
  PairLogits logits_;
  ops::VerifyRule rule_;
  int width_;
  ChanceSums sums_;
};

}  // namespace tandem::speculate
