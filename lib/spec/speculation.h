#pragma once
#include <deque>
#include <memory>
#include <vector>

#include "spec/drafter.h"
#include "spec/rounds.h"

namespace tandem::spec {

/// Several tokens a step: a drafter proposes a tree, the target scores all its nodes in one forward, a
/// path is kept by a rule that leaves the law of the text as it is, and one more token is drawn where the
/// path ends.
/// source   Sequoia, algorithm 2 for drawn children; for deterministic ones a token of the target is drawn
///          and the child equal to it accepted
class Speculation final : public Rounds {
 public:
  /// target   an engine with room for a tree's rows of every sequence, logits of all of them, and as many
  ///          tokens beyond each text
  Speculation(decode::Engine& target, std::unique_ptr<Drafter> drafter, RoundOptions options = {});

  /// errors   kind recipe: alternatives of tokens are not reported here
  void start(const decode::SamplerSpec& spec) override;
  int depth() const override { return 1; }
  int in_flight() const override { return static_cast<int>(results_.size()); }
  void draw(std::span<const decode::DrawSeq> seqs, const Tensor& logits) override;
  void step(std::span<const decode::DrawSeq> seqs) override;
  std::vector<std::vector<decode::Drawn>> collect() override;
  void forget(int slot) override { drafter_->forget(slot); }
  double bytes_read() const override { return bytes_read_ + drafter_->bytes_read(); }
  void share(std::span<const int32_t> prefix) override { drafter_->share(prefix); }
  void continue_from(int draft_slot) override { drafter_->continue_from(draft_slot); }
  AcceptBy accept_by() const override { return drafter_->accept_by(); }
  const RoundStats& stats() const override { return stats_; }

 private:
  decode::Engine& target_;
  std::unique_ptr<Drafter> drafter_;
  RoundOptions options_;
  decode::SamplerSpec sampler_;
  std::deque<std::vector<std::vector<decode::Drawn>>> results_;
  RoundStats stats_;
  double bytes_read_ = 0;
};

}  // namespace tandem::spec
