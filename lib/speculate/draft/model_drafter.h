#pragma once
#include <vector>

#include "speculate/draft/draft_texts.h"
#include "speculate/draft/drafter.h"

namespace tandem::speculate {

/// A small model that grows a tree of fixed shape level by level, the children of every node drawn
/// without replacement from its distribution (Sequoia, section 4.1; at temperature 0 its best
/// tokens).
class ModelDrafter final : public HostDrafter {
 public:
  /// draft    an engine on the CPU with room for draft_needs
  /// vocab    of the target, where the draft's has more or less padding; 0 = the draft's
  ModelDrafter(decode::Engine& draft, TokenTree tree, int vocab = 0);

  AcceptBy accept_by() const override { return AcceptBy::residual; }
  Tensor draft_logits() const override { return logits_view_; }
  std::string name() const override { return draft_.files().name; }
  int max_nodes() const override { return tree_.size(); }
  int max_depth() const override { return tree_.levels() - 1; }
  void start(const decode::SamplerSpec& spec) override { sampler_ = spec; }
  void share(std::span<const int32_t> prefix) override { texts_.share(prefix); }
  void continue_from(int draft_slot) override { texts_.continue_from(draft_slot); }
  void read(std::span<const decode::DrawSeq> seqs) override { texts_.read(seqs); }
  std::span<const Proposal> propose(std::span<const decode::DrawSeq> seqs) override;
  void accept(std::span<const std::span<const int32_t>> paths) override {
    texts_.accept(paths, false);
  }
  void forget(int slot) override { texts_.forget(slot); }
  double bytes_read() const override { return bytes_read_; }

 private:
  void run_level(std::span<const decode::DrawSeq> seqs, int level, const kv::Step& step);
  void draw_level(std::span<const decode::DrawSeq> seqs, int level, const kv::Step& step);

  decode::Engine& draft_;
  TokenTree tree_;
  int vocab_;
  DraftTexts texts_;
  decode::SamplerSpec sampler_;
  std::vector<Proposal> proposals_;
  std::vector<int32_t> row_;  // of a node among the internal ones, -1 = a leaf
  int n_internal_ = 0;
  std::vector<float> logits_;        // [sequences * n_internal_, vocab]
  std::vector<float> level_logits_;  // of a level, if the vocabularies differ
  Tensor logits_view_;
  double bytes_read_ = 0;
};

}  // namespace tandem::speculate
