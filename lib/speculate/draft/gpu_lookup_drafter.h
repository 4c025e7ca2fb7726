#pragma once
#include "speculate/draft/gpu_drafter.h"
#include "speculate/draft/lookup_drafter.h"

namespace tandem::speculate {

/// LookupDrafter for a target on a GPU: chains of one length, found by the host. Where the text has
/// less to offer the chain ends in copies of its root, which verification by match accepts where
/// they happen to be right.
class GpuLookupDrafter final : public GpuDrafter {
 public:
  /// As LookupDrafter's.
  GpuLookupDrafter(int longest, int length) : longest_(longest), tree_(chain_tree(length + 1)) {}

  const TokenTree& tree() const override { return tree_; }
  AcceptBy accept_by() const override { return AcceptBy::match; }
  std::string name() const override { return "ngram"; }
  int prepare(std::span<const decode::DrawSeq> seqs, DeviceTrees& trees) override;

 private:
  int longest_;
  TokenTree tree_;
};

}  // namespace tandem::speculate
