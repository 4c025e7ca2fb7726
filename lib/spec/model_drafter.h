#pragma once
#include <map>
#include <vector>

#include "decode/engine.h"
#include "kv/step.h"
#include "spec/drafter.h"

namespace tandem::spec {

/// A small model that grows a tree of fixed shape level by level, the children of every node drawn
/// without replacement from its distribution (Sequoia, section 4.1; at temperature 0 its best
/// tokens). Each level is a forward over its own nodes, which see the levels above in the cache;
/// the deepest needs none: its keys are computed when it has been accepted.
class ModelDrafter final : public Drafter {
 public:
  /// Room in an engine beyond the texts themselves.
  struct Needs {
    int rows = 0;        // of the forwards of a round together
    int logit_rows = 0;  // alive at once
    int tokens = 0;      // beyond a sequence's text
  };
  /// Of the draft's engine, for trees of `batch` sequences.
  static Needs needs(const TokenTree& tree, int batch);

  /// draft    an engine with room for `needs`; its vocabulary is the target's
  ModelDrafter(decode::Engine& draft, TokenTree tree);

  AcceptBy accept_by() const override { return AcceptBy::residual; }
  Tensor draft_logits() const override { return logits_view_; }
  std::string name() const override { return draft_.files().name; }
  int max_nodes() const override { return tree_.size(); }
  int max_depth() const override { return tree_.levels() - 1; }
  void start(const decode::SamplerSpec& spec) override { sampler_ = spec; }
  void read(std::span<const decode::DrawSeq> seqs) override;
  std::span<const Proposal> propose(std::span<const decode::DrawSeq> seqs) override;
  void accept(std::span<const std::vector<int>> paths) override;
  void forget(int slot) override;
  double bytes_read() const override { return bytes_read_; }

 private:
  /// Lays out the round's forwards: the first takes what the draft's cache lacks of each text, the
  /// others the nodes of a level.
  void begin_levels(std::span<const decode::DrawSeq> seqs);
  void run_level(std::span<const decode::DrawSeq> seqs, int level);
  void draw_level(std::span<const decode::DrawSeq> seqs, int level);
  int slot_of(const decode::DrawSeq& seq) const { return slots_.at(seq.slot); }
  /// Tokens that the first forward takes of the text itself: the root, and what was accepted
  /// without keys.
  std::span<const int32_t> unread(const decode::DrawSeq& seq) const;

  decode::Engine& draft_;
  TokenTree tree_;
  decode::SamplerSpec sampler_;
  std::map<int, int> slots_;  // target's -> draft's
  std::vector<Proposal> proposals_;
  std::vector<int32_t> row_;   // of a node among the internal ones, -1 = a leaf
  int n_internal_ = 0;
  std::vector<float> logits_;  // [sequences * n_internal_, vocab]
  Tensor logits_view_;
  std::vector<kv::Step> steps_;  // by level, not committed yet
  std::vector<int> chains_;      // by sequence: rows of the first step, the root's last
  double bytes_read_ = 0;
};

}  // namespace tandem::spec
