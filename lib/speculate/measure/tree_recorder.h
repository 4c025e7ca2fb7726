#pragma once
#include "speculate/round/round.h"
#include "speculate/tree/tree_rounds.h"

namespace tandem::speculate {

/// Records rounds of one tree on the CPU.
class TreeRecorder {
 public:
  TreeRecorder(const TokenTree& tree, const RecordedRun& run) : rounds_(empty_rounds(tree, run)) {}

  /// Of a round that is over: all its sequences.
  /// logits   the target's, of all nodes
  /// errors   kind numeric: a row without meaning
  void add(const Round& round, const Tensor& logits);

  const TreeRounds& rounds() const { return rounds_; }

 private:
  TreeRounds rounds_;
};

}  // namespace tandem::speculate
