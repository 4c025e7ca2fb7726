#pragma once
#include "speculate/draft/drafter.h"
#include "speculate/round/drafted_rounds.h"

namespace tandem::speculate {

/// Rounds on the CPU: a drafter proposes a tree, the target scores all its nodes in one forward, a
/// path is kept by a rule that leaves the law of the text as it is, and one more token is drawn
/// where the path ends.
/// source   Sequoia, algorithm 2 for drawn children; for deterministic ones a token of the target is
///          drawn and the child equal to it accepted
class Speculation final : public DraftedRounds<HostDrafter> {
 public:
  /// target   an engine with room for target_needs
  Speculation(decode::Engine& target, std::unique_ptr<HostDrafter> drafter,
              RoundOptions options = {})
      : DraftedRounds(target, std::move(drafter), std::move(options)) {}

  void step(std::span<const decode::DrawSeq> seqs) override;
};

}  // namespace tandem::speculate
