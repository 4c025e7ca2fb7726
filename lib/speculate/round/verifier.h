#pragma once
#include <span>
#include <vector>

#include "speculate/reader.h"
#include "speculate/round/round.h"
#include "speculate/round/verify_choice.h"

namespace tandem::speculate {

/// Whether rules by sequences may cost more than they win over this target: see kLightTarget.
bool is_light(decode::Engine& target);

/// What every round does with its proposals, within another or not: a reader of the target scores
/// all nodes in one forward, and a rule finds the accepted paths, whose keys then follow their
/// roots.
class Verifier {
 public:
  Verifier(Reader reader, const AcceptRule& rule) : reader_(reader), rule_(rule) {}

  const Reader& reader() const { return reader_; }
  decode::Engine& target() const { return *reader_.engine; }
  AcceptBy rule() const { return rule_.by; }

  /// Lays out the forward of a round that has begun, of the target's sequences in these slots. It
  /// is laid out again as long as sequences and shape are the same.
  /// is_probe   as kv::StepSpec's, always the same for one tree
  void lay_out(Round& round, std::span<const int32_t> slots, bool is_probe = false);
  const kv::Step& step() const { return step_; }

  // Work; graphs may record it:

  /// The forward, and the logits of a first group of trees.
  void score(Round& round);
  /// Verifies all groups, those after the first once they have their logits, and moves keys.
  void verify(Round& round);

  /// Rows of logits that are alive at once: of whole trees.
  int64_t group_rows(const Round& round) const;
  /// The logits of the trees from this row on.
  Tensor logits(const Round& round, int64_t first) const;

 private:
  Reader reader_;
  AcceptRule rule_;
  kv::Step step_;
  const TokenTree* step_tree_ = nullptr;
};

}  // namespace tandem::speculate
