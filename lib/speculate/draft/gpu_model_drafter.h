#pragma once
#include <memory>
#include <vector>

#include "kernels/tree/draw_children.h"
#include "speculate/draft/draft_texts.h"
#include "speculate/draft/gpu_drafter.h"

namespace tandem::speculate {

/// ModelDrafter on a GPU: the forwards of all levels and the draws between them, as work that a
/// graph records.
class GpuModelDrafter final : public GpuDrafter {
 public:
  /// Device memory beyond the engine's.
  static void plan(const TokenTree& tree, int max_seqs, Device device, MemoryPlan& plan);
  static size_t outbox_bytes(const TokenTree& tree, int max_seqs);
  /// draft    an engine on the target's queue with room for draft_needs; its vocabulary is the
  ///          target's
  GpuModelDrafter(decode::Engine& draft, const TokenTree& tree, int max_seqs, Arena& arena);

  const TokenTree& tree() const override { return tree_; }
  AcceptBy accept_by() const override { return AcceptBy::residual; }
  std::string name() const override { return draft_.files().name; }
  void start(const decode::SamplerSpec& spec) override { sampler_ = spec; }
  void share(std::span<const int32_t> prefix) override { texts_.share(prefix); }
  void continue_from(int draft_slot) override { texts_.continue_from(draft_slot); }
  void read(std::span<const decode::DrawSeq> seqs) override { texts_.read(seqs); }
  size_t outbox_bytes() const override { return outbox_bytes(tree_, max_seqs_); }
  int prepare(std::span<const decode::DrawSeq> seqs, DeviceTrees& trees) override;
  void draft(int n_seqs, DeviceTrees& trees) override;
  Tensor draft_logits() const override { return draft_.logit_rows(); }
  const int32_t* draft_rows() const override { return draft_row_; }
  void keep(int n_seqs, DeviceTrees& trees) override;
  void accept(std::span<const std::span<const int32_t>> paths) override {
    texts_.accept(paths, true);
  }
  void forget(int slot) override { texts_.forget(slot); }
  double bytes_read() const override { return bytes_read_; }

 private:
  /// A level whose nodes have children. Its rows stand sequence after sequence, so a batch uses the
  /// first of what is here for as many sequences as there may be.
  struct Level {
    int nodes = 0, parents = 0;      // of one sequence
    int first_logits = 0;            // row of the draft's logits where the level's begin
    const int32_t* token = nullptr;  // [max_seqs * nodes] where in the trees' tokens a row's stands
    // [max_seqs * parents] rows of the forward that have children; the first level's are sent
    const int32_t* row = nullptr;
    const ParentRow* parent = nullptr;  // [max_seqs * parents] and these nodes
  };

  decode::Engine& draft_;
  TokenTree tree_;
  int max_seqs_;
  DraftTexts texts_;
  Exec exec_;
  decode::SamplerSpec sampler_;
  std::vector<Level> levels_;
  const std::vector<kv::Step>* steps_ = nullptr;  // of the round
  int32_t* draft_row_;                            // [max_seqs, nodes]
  int32_t* ids_;                                  // [max_seqs * widest level] tokens of a forward
  // The first level's, of the round:
  const int32_t* unread_ = nullptr;    // [n_unread] what it takes of the texts
  const int32_t* root_row_ = nullptr;  // [seqs] its rows of the roots
  double bytes_read_ = 0;
};

}  // namespace tandem::speculate
