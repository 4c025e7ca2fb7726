#pragma once
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "speculate/draft/gpu_drafter.h"
#include "speculate/round/drafted_rounds.h"

namespace tandem::speculate {

/// Speculation on a GPU: one graph brings what the host has laid out, drafts, runs the target,
/// verifies, moves the keys of what is accepted and takes the tokens back. The GPU idles from its
/// end to the launch of the next, so the host does little there. A target whose layers are streamed
/// runs without a graph, between two.
/// source   as Speculation
class GpuSpeculation final : public DraftedRounds<GpuDrafter> {
 public:
  /// What stands beside engines and drafter.
  /// drafter_bytes  the drafter's GpuDrafter::outbox_bytes
  static void plan(const TokenTree& tree, const decode::EngineSpec& target, size_t drafter_bytes,
                   int vocab, MemoryPlan& plan);
  /// target   an engine with room for target_needs
  /// arena    holds what was planned here and for the drafter
  GpuSpeculation(decode::Engine& target, std::unique_ptr<Arena> arena,
                 std::unique_ptr<GpuDrafter> drafter, RoundOptions options = {});
  ~GpuSpeculation() override;

  void start(const decode::SamplerSpec& spec) override;
  int in_flight() const override { return is_flying_ ? 1 : DraftedRounds::in_flight(); }
  void step(std::span<const decode::DrawSeq> seqs) override;
  std::vector<std::vector<decode::Drawn>> collect() override;

 private:
  struct Graphs {
    std::unique_ptr<cuda::Graph> round;
    std::unique_ptr<cuda::Graph> before,
        after;  // in place of it, around a streamed target's layers
  };

  /// Waits for a round that nobody will collect; whoever needs the GPU next hears of its errors.
  void abandon() noexcept;
  void finish_round();
  void fill_inputs(std::span<const decode::DrawSeq> seqs);
  void lay_out_target(std::span<const decode::DrawSeq> seqs);
  /// Puts the round that is laid out on the queue.
  void launch(int n_seqs, Graphs& graphs);
  /// Walks the trees and moves the keys of what is accepted; may be recorded in a graph.
  void verify(int n_seqs);

  std::unique_ptr<Arena> arena_;
  Exec exec_;
  DeviceTrees trees_;
  std::map<std::pair<int, int>, Graphs> graphs_;  // by sequences and the drafter's name of its work
  // The target's step, laid out again as long as as many sequences go on:
  kv::Step step_;
  std::vector<int32_t> slots_;
  // The round in flight:
  bool is_flying_ = false;
  std::vector<int> seqs_;  // their names
  // What it gave:
  std::vector<std::span<const int32_t>> paths_;
  std::vector<int> kept_;
};

}  // namespace tandem::speculate
