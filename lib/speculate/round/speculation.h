#pragma once
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "speculate/draft/drafter.h"
#include "speculate/reader.h"
#include "speculate/round/rounds.h"

namespace tandem::speculate {

/// Rounds on either device: a drafter proposes a tree for each sequence, the target scores all
/// nodes in one forward, a path is kept by a rule that leaves the distribution of the text as it
/// is, and one more token is drawn where the path ends. On a GPU that is one graph, from the copy
/// of what the host has laid out to that of the results; the GPU idles from its end to the launch
/// of the next, so the host does little there. Work that cannot be recorded, such as layers whose
/// weights are streamed, runs between graphs.
/// source   Sequoia, algorithm 2 for drawn children; for deterministic ones a token of the target is
///          drawn and the child equal to it accepted
class Speculation final : public Rounds {
 public:
  /// target   an engine with room for target_needs
  /// arena    holds what Round::plan says; outlives the rounds' work
  Speculation(Reader target, std::unique_ptr<Drafter> drafter, const Round::Bounds& bounds,
              std::unique_ptr<Arena> arena, RoundOptions options);
  ~Speculation() override;

  kv::Readers readers() const override;
  /// errors   kind recipe: alternatives of tokens are not reported here
  void start(const decode::SamplerSpec& spec) override;
  int depth() const override { return 1; }
  int in_flight() const override { return is_flying_ || !ready_.empty() ? 1 : 0; }
  void draw(std::span<const decode::DrawSeq> seqs, const Tensor& logits) override;
  void step(std::span<const decode::DrawSeq> seqs) override;
  std::vector<std::vector<decode::Drawn>> collect() override;
  void forget(int slot) override { drafter_->forget(slot); }
  double bytes_read() const override { return bytes_read_ + drafter_->bytes_read(); }
  void share(std::span<const int32_t> prefix) override { drafter_->share(prefix); }
  void continue_from(int draft_slot) override { drafter_->continue_from(draft_slot); }
  AcceptBy accept_by() const override { return rule_; }
  const RoundStats& stats() const override { return stats_; }

 private:
  /// Waits for a round whose results are not wanted; the next work on the GPU reports its errors.
  void abandon() noexcept;
  void lay_out_target();
  /// Puts the round that is laid out on the queue.
  void launch();
  void finish_round();

  decode::Engine& target_;
  Reader reader_;
  std::unique_ptr<Arena> arena_;
  Exec exec_;
  std::unique_ptr<Drafter> drafter_;
  RoundOptions options_;
  AcceptBy rule_;
  decode::SamplerSpec sampler_;
  Round round_;
  RoundStats stats_;
  double bytes_read_ = 0;  // by the target
  /// By places, shape and piece of the work; for the sampler's settings but for the seed.
  std::map<std::tuple<int, const TokenTree*, size_t>, std::unique_ptr<cuda::Graph>> graphs_;
  // The target's step, laid out again as long as sequences and shape are the same:
  kv::Step step_;
  const TokenTree* step_tree_ = nullptr;
  std::vector<int32_t> slots_;
  // The round in flight:
  bool is_flying_ = false;
  std::vector<int> seqs_;  // their names
  std::vector<int> kept_;
  // Of a draw or a finished round, not collected yet:
  std::vector<std::vector<decode::Drawn>> ready_;
};

}  // namespace tandem::speculate
