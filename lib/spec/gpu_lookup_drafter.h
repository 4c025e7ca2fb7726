#pragma once
#include "spec/gpu_drafter.h"
#include "spec/lookup_drafter.h"

namespace tandem::spec {

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
  void start(const decode::SamplerSpec& /*spec*/) override {}
  void share(std::span<const int32_t> /*prefix*/) override {}
  void continue_from(int /*draft_slot*/) override {}
  void read(std::span<const decode::DrawSeq> /*seqs*/) override {}
  int prepare(std::span<const decode::DrawSeq> seqs, DeviceTrees& trees) override;
  void draft(int /*n_seqs*/, DeviceTrees& /*trees*/) override {}
  Tensor draft_logits() const override { return {}; }
  const int32_t* draft_rows() const override { return nullptr; }
  void keep(int /*n_seqs*/, DeviceTrees& /*trees*/) override {}
  void accept(std::span<const std::span<const int32_t>> /*paths*/) override {}
  void forget(int /*slot*/) override {}
  double bytes_read() const override { return 0; }

 private:
  int longest_;
  TokenTree tree_;
};

}  // namespace tandem::spec
