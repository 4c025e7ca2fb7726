#pragma once
#include <map>
#include <vector>

#include "decode/decoder.h"
#include "ops/verification.h"
#include "speculate/measure/chance_sums.h"
#include "speculate/reader.h"

namespace tandem::speculate {

/// Acceptance by depth: writes a text of the target one node a step, by the rule of rounds, and so
/// knows how many draft tokens were accepted in a row before a node. At each, the exact chances of
/// its children are added to the row of that depth. Depth restarts at 0 after a rejection, and
/// after `depths` acceptances in a row, where a tree of that depth would end: rows hold for trees
/// of that many levels and about `width` children a node. Trees that end rounds earlier put more
/// weight on hard positions than these rows do.
class DepthMeter final : public decode::Decoder {
 public:
  /// rule     as TreeMeter's
  /// draft    another model
  /// depths   rows
  DepthMeter(decode::Engine& target, Reader draft, const ops::VerifyRule& rule, int width,
             int depths);

  void start(const decode::SamplerSpec& spec) override;
  int depth() const override { return 1; }
  int in_flight() const override { return static_cast<int>(results_.size()); }
  void draw(std::span<const decode::DrawSeq> seqs, const Tensor& logits) override;
  void step(std::span<const decode::DrawSeq> seqs) override;
  std::vector<std::vector<decode::Drawn>> collect() override;
  void forget(int slot) override;
  double bytes_read() const override { return 0; }

  const std::vector<ChanceSums>& rows() const { return rows_; }

 private:
  struct Text {
    int draft_slot = -1;
    size_t depth = 0;  // of the node that comes next
  };

  decode::Engine& target_;
  Reader draft_;
  ops::VerifyRule rule_;
  int width_;
  decode::SamplerSpec sampler_;
  std::map<int, Text> texts_;  // by the target's slot
  std::vector<ChanceSums> rows_;
  std::vector<float> wide_logits_;  // the draft's, if the vocabularies differ
  std::vector<std::vector<std::vector<decode::Drawn>>> results_;
};

}  // namespace tandem::speculate
