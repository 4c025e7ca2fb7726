#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "speculate/round/round.h"

namespace tandem::speculate {

/// What a rule of verification made of trees.
struct RuleTokens {
  AcceptBy rule = AcceptBy::sequoia;
  int64_t rounds = 0, accepted = 0;
  /// Rounds by the child that was accepted of a node on a level: [levels - 1][children].
  std::vector<std::vector<int64_t>> children;
  std::vector<int64_t> reached;  // [levels - 1] rounds by nodes with children on the accepted path

  /// The bonus token counts.
  double tokens_per_round() const {
    return rounds > 0 ? 1 + static_cast<double>(accepted) / static_cast<double>(rounds) : 0;
  }
};

/// A difference of means with the half-width of its 95 % interval.
struct Difference {
  double relative = 0, half_width = 0;
};

/// Verifies the very trees of rounds, with the same random numbers, by several rules: how many
/// tokens each gives in the same contexts. Rounds themselves go on by the rule they have.
class RuleMeter {
 public:
  explicit RuleMeter(std::span<const AcceptBy> rules);

  /// Of a round on the CPU that is over: all its sequences.
  /// logits   the target's, of all nodes
  /// errors   kind numeric: a row without meaning
  void add(const Round& round, const Tensor& logits);

  const std::vector<RuleTokens>& rules() const { return rules_; }
  /// Tokens a round of rule `i` over those of rule 0, less 1; the texts are the samples, since
  /// rounds of one text resemble each other.
  Difference gain(size_t i) const;

 private:
  std::vector<RuleTokens> rules_;
  std::map<int, std::vector<double>> of_text_;  // tokens by rule
};

}  // namespace tandem::speculate
