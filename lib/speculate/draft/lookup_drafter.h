#pragma once
#include <unordered_map>
#include <vector>

#include "speculate/draft/drafter.h"
#include "speculate/draft/lookup_index.h"

namespace tandem::speculate {

/// Proposes what followed the last tokens where they stood before in the sequence: a chain, found
/// without a model on the host. Good where texts quote themselves. A round takes the shortest of a
/// few chains that holds what it found for all its sequences; with nothing found it is a plain
/// step. Within rounds DeviceLookupDrafter does the same.
/// source   prompt lookup decoding (Saxena, 2023)
class LookupDrafter final : public Drafter {
 public:
  /// longest  tokens that must agree, at most; the longest agreement is taken, of several the latest
  /// length   tokens of a proposal, at most; none where nothing agrees
  LookupDrafter(int longest, int length);

  bool draws_children() const override { return false; }
  std::string name() const override { return "ngram"; }
  const TokenTree& largest() const override { return chains_.back(); }
  void read(std::span<const decode::DrawSeq> seqs) override;
  void forget(int slot) override { indexes_.erase(slot); }
  const TokenTree& shape(std::span<const decode::DrawSeq> seqs) override;
  void prepare(Round& round) override;

 private:
  int longest_;
  std::unordered_map<int, LookupIndex> indexes_;  // by slot of the target's cache
  std::vector<TokenTree> chains_;                 // by length
  std::vector<std::span<const int32_t>> found_;
};

}  // namespace tandem::speculate
