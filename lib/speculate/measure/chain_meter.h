#pragma once
#include <vector>

#include "speculate/round/round.h"

namespace tandem::speculate {

/// How often the drafted tokens of rounds of chains are accepted one by one (Sequoia's rule, which
/// of chains is that of Leviathan et al.), as sums over distributions along what the draft drew:
/// a token counts with its chance of being tested, the product of those of the tokens before it,
/// and with the overlap of what target and draft draw from there. Fewer rounds are needed than by
/// counting, and the figures are those of that rule regardless of the rule that the rounds follow.
class ChainMeter {
 public:
  /// uneven   chains have `gamma` tokens at most; else shorter ones, which were cut at a text's end,
  ///          are left out
  explicit ChainMeter(int gamma, bool uneven = false)
      : gamma_(static_cast<size_t>(gamma)), uneven_(uneven) {}

  /// For RoundOptions::on_verified and WithinOptions::on_verified, on the CPU.
  void add(const Round& round, const Tensor& logits);

  /// A round, by drafted tokens.
  struct Chances {
    int seq = 0, position = 0;             // the sequence's name, and its tokens
    std::vector<double> tested, accepted;  // [tokens]
  };
  const std::vector<Chances>& rounds() const { return rounds_; }

 private:
  size_t gamma_;
  bool uneven_;
  std::vector<Chances> rounds_;
};

}  // namespace tandem::speculate
