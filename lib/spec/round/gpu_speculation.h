#pragma once
#include <array>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "spec/round/drafted_rounds.h"
#include "spec/draft/gpu_drafter.h"

namespace tandem::spec {

/// Speculation on a GPU: drafting, the target's forward, and verification with the moves of
/// accepted keys are recorded as graphs, one each, that a round launches one after the other; the
/// host only lays rounds out and reads which tokens they gave. A target whose layers are streamed
/// runs without a graph.
/// source   as Speculation
class GpuSpeculation final : public DraftedRounds<GpuDrafter> {
 public:
  /// What stands beside engines and drafter.
  static void plan(const TokenTree& tree, const decode::EngineSpec& target, MemoryPlan& plan);
  /// target   an engine with room for target_needs
  /// arena    holds what was planned here and for the drafter
  GpuSpeculation(decode::Engine& target, std::unique_ptr<Arena> arena,
                 std::unique_ptr<GpuDrafter> drafter, RoundOptions options = {});

  void start(const decode::SamplerSpec& spec) override;
  int in_flight() const override { return is_flying_ ? 1 : DraftedRounds::in_flight(); }
  void step(std::span<const decode::DrawSeq> seqs) override;
  std::vector<std::vector<decode::Drawn>> collect() override;

 private:
  struct Graphs {
    std::unique_ptr<cuda::Graph> draft, target, verify;
  };

  void finish_round();
  void fill_inputs(std::span<const decode::DrawSeq> seqs);
  void lay_out_target(std::span<const decode::DrawSeq> seqs);
  /// Walks the trees and moves the keys of what is accepted; may be recorded in a graph.
  void verify(int n_seqs, const kv::Step& step, const Tensor& logits);

  std::unique_ptr<Arena> arena_;
  Exec exec_;
  DeviceTrees trees_;
  std::map<std::pair<int, int>, Graphs> graphs_;  // by sequences and the drafter's name of its work
  std::array<std::unique_ptr<cuda::Event>, 4> marks_;  // begun, drafted, scored, verified
  // The round in flight:
  bool is_flying_ = false;
  kv::Step step_;
  std::vector<decode::DrawSeq> seqs_;
};

}  // namespace tandem::spec
