#pragma once
#include <vector>

#include "speculate/draft/drafter.h"

namespace tandem::speculate {

/// What followed the last tokens of a text where they stood before, `length` tokens at most: of the
/// longest run of at most `longest` tokens that agrees, the latest place. Empty where nothing
/// agrees.
std::span<const int32_t> look_up(std::span<const int32_t> text, int longest, int length);

/// Proposes what followed the last tokens where they stood before in the text: a chain, found
/// without a model. Good where texts quote themselves.
/// source   prompt look-up decoding (Saxena, 2023)
class LookupDrafter final : public HostDrafter {
 public:
  /// longest  tokens that must agree, at most; the longest agreement is taken, of several the latest
  /// length   tokens of a proposal, at most; none where nothing agrees
  LookupDrafter(int longest, int length);

  AcceptBy accept_by() const override { return AcceptBy::match; }
  Tensor draft_logits() const override { return {}; }
  std::string name() const override { return "ngram"; }
  int max_nodes() const override { return static_cast<int>(chains_.size()); }
  int max_depth() const override { return max_nodes() - 1; }
  std::span<const Proposal> propose(std::span<const decode::DrawSeq> seqs) override;

 private:
  int longest_;
  std::vector<TokenTree> chains_;  // by nodes below the root
  std::vector<Proposal> proposals_;
};

}  // namespace tandem::speculate
