#pragma once
#include "speculate/draft/drafter.h"

namespace tandem::speculate {

/// Prompt lookup within rounds of a NestedDrafter: what followed the last tokens of a text before,
/// tentative ones included, is found where the target computes. A proposal that is shorter than the
/// chain ends it; with nothing found a round within is a step under the second reading. The host
/// has to know each text before a round around begins, so that none is laid out ahead of the last
/// one's end. Alone LookupDrafter is the better one: it looks the host's index up before a round,
/// which takes no more nodes than it found tokens.
/// source   prompt lookup decoding (Saxena, 2023)
class DeviceLookupDrafter final : public Drafter {
 public:
  /// longest  tokens that must agree, at most; the longest agreement is taken, of several the latest
  /// length   tokens of a proposal, at most
  DeviceLookupDrafter(int longest, int length)
      : longest_(longest), chain_(chain_tree(length + 1)) {}

  bool draws_children() const override { return false; }
  bool reads_text() const override { return true; }
  std::string name() const override { return "ngram"; }
  const TokenTree& largest() const override { return chain_; }
  void draft(Round& round) override { round.look_up(longest_); }

 private:
  int longest_;
  TokenTree chain_;
};

}  // namespace tandem::speculate
