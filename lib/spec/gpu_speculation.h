#pragma once
#include <array>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "spec/gpu_drafter.h"
#include "spec/rounds.h"

namespace tandem::spec {

/// Speculation on a GPU: drafting, the target's forward, and verification with the moves of
/// accepted keys are recorded as graphs, one each, that a round launches one after the other; the
/// host only lays rounds out and reads which tokens they gave. A target whose layers are streamed runs
/// without a graph.
/// source   as Speculation
class GpuSpeculation final : public Rounds {
 public:
  /// What stands beside engines and drafter.
  static void plan(const TokenTree& tree, const decode::EngineSpec& target, MemoryPlan& plan);
  /// target   an engine with room for target_needs
  /// arena    holds what was planned here and for the drafter
  GpuSpeculation(decode::Engine& target, std::unique_ptr<Arena> arena,
                 std::unique_ptr<GpuDrafter> drafter, RoundOptions options = {});

  /// errors   kind recipe: alternatives of tokens are not reported here
  void start(const decode::SamplerSpec& spec) override;
  int depth() const override { return 1; }
  int in_flight() const override { return is_flying_ || !first_.empty() ? 1 : 0; }
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
  struct Graphs {
    std::unique_ptr<cuda::Graph> draft, target, verify;
  };

  void fill_inputs(std::span<const decode::DrawSeq> seqs);
  void lay_out_target(std::span<const decode::DrawSeq> seqs);
  /// Walks the trees and moves the keys of what is accepted; may be recorded in a graph.
  void verify(int n_seqs, const kv::Step& step, const Tensor& logits);

  decode::Engine& target_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<GpuDrafter> drafter_;
  Exec exec_;
  DeviceTrees trees_;
  RoundOptions options_;
  decode::SamplerSpec sampler_;
  std::map<std::pair<int, int>, Graphs> graphs_;  // by sequences and the drafter's name of its work
  std::array<std::unique_ptr<cuda::Event>, 4> marks_;  // begun, drafted, scored, verified
  // The round in flight:
  bool is_flying_ = false;
  kv::Step step_;
  std::vector<decode::DrawSeq> seqs_;
  std::vector<std::vector<decode::Drawn>> first_;  // of a draw not collected yet
  RoundStats stats_;
  double bytes_read_ = 0;
};

}  // namespace tandem::spec
