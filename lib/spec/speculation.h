#pragma once
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "decode/decoder.h"
#include "spec/drafter.h"

namespace tandem::spec {

/// What rounds have done so far, over all sequences.
struct RoundStats {
  std::string drafter;   // its name
  int nodes = 0;         // of a tree, the root counts
  int64_t rounds = 0;    // a sequence's, not a batch's
  int64_t drafted = 0;   // nodes, roots left out
  int64_t accepted = 0;  // of them
  int64_t emitted = 0;   // tokens: accepted and one more a round, those behind a text's end included
  std::vector<int64_t> accepted_hist;  // rounds by number of accepted nodes
  double draft_s = 0, target_s = 0, verify_s = 0;

  double tokens_per_round() const {
    return rounds > 0 ? static_cast<double>(emitted) / static_cast<double>(rounds) : 0;
  }
};

/// One round of one sequence.
struct RoundEvent {
  int seq = 0;
  int drafted = 0, accepted = 0;
};

/// Several tokens a step: a drafter proposes a tree, the target scores all its nodes in one forward, a
/// path is kept by a rule that leaves the law of the text as it is, and one more token is drawn where the
/// path ends.
/// source   Sequoia, algorithm 2 for drawn children; for deterministic ones a token of the target is drawn
///          and the child equal to it accepted
class Speculation final : public decode::Decoder {
 public:
  /// target   an engine with room for a tree's rows of every sequence, logits of all of them, and as many
  ///          tokens beyond each text
  Speculation(decode::Engine& target, Drafter& drafter,
              std::function<void(const RoundEvent&)> on_round = {});

  /// errors   kind recipe: alternatives of tokens are not reported here
  void start(const decode::SamplerSpec& spec) override;
  int depth() const override { return 1; }
  int in_flight() const override { return static_cast<int>(results_.size()); }
  void draw(std::span<const decode::DrawSeq> seqs, const Tensor& logits) override;
  void step(std::span<const decode::DrawSeq> seqs) override;
  std::vector<std::vector<decode::Drawn>> collect() override;
  void forget(int slot) override { drafter_.forget(slot); }
  double bytes_read() const override { return bytes_read_ + drafter_.bytes_read(); }

  const RoundStats& stats() const { return stats_; }

 private:
  decode::Engine& target_;
  Drafter& drafter_;
  std::function<void(const RoundEvent&)> on_round_;
  decode::SamplerSpec sampler_;
  std::deque<std::vector<std::vector<decode::Drawn>>> results_;
  RoundStats stats_;
  double bytes_read_ = 0;
};

}  // namespace tandem::spec
