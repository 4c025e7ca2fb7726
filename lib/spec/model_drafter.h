#pragma once
#include <map>
#include <vector>

#include "decode/engine.h"
#include "kv/step.h"
#include "spec/drafter.h"

namespace tandem::spec {

/// A small model that grows a tree of fixed shape level by level, the children of every node drawn
/// without replacement from its distribution (Sequoia, section 4.1; at temperature 0 its best tokens).
/// A forward of a level takes the levels above once more, since rows of a step see no tentative rows of
/// an earlier one; the deepest level needs none: its keys are computed when it has been accepted.
class ModelDrafter final : public Drafter {
 public:
  /// Room in an engine beyond the texts themselves.
  struct Needs {
    int rows = 0;        // of one forward
    int logit_rows = 0;  // alive at once
    int tokens = 0;      // beyond a sequence's text
  };
  /// Of the draft's engine, for trees of `batch` sequences.
  static Needs needs(const TokenTree& tree, int batch);

  /// draft    an engine with room for `needs`
  /// vocab    of the target, where the draft's has more or less padding; 0 = the draft's
  ModelDrafter(decode::Engine& draft, TokenTree tree, int vocab = 0);
  ~ModelDrafter() override;

  AcceptBy accept_by() const override { return AcceptBy::residual; }
  Tensor draft_logits() const override { return logits_view_; }
  std::string name() const override { return draft_.files().name; }
  int max_nodes() const override { return tree_.size(); }
  int max_depth() const override { return tree_.levels() - 1; }
  void start(const decode::SamplerSpec& spec) override { sampler_ = spec; }
  void share(std::span<const int32_t> prefix) override;
  /// As share, of tokens that this slot of the draft's cache holds; it stays the caller's.
  void continue_from(int slot);
  void read(std::span<const decode::DrawSeq> seqs) override;
  std::span<const Proposal> propose(std::span<const decode::DrawSeq> seqs) override;
  void accept(std::span<const std::vector<int>> paths) override;
  void forget(int slot) override;
  double bytes_read() const override { return bytes_read_; }

 private:
  /// A forward over what the draft's cache lacks of each text and over the nodes above `level`.
  void run_level(std::span<const decode::DrawSeq> seqs, int level);
  void draw_level(std::span<const decode::DrawSeq> seqs, int level);
  int slot_of(const decode::DrawSeq& seq) const { return slots_.at(seq.slot); }
  /// Tokens that the next forward takes of the text itself: the root, and what was accepted without keys.
  std::span<const int32_t> unread(const decode::DrawSeq& seq) const;

  decode::Engine& draft_;
  TokenTree tree_;
  int vocab_;
  decode::SamplerSpec sampler_;
  std::map<int, int> slots_;  // target's -> draft's
  int prefix_slot_ = -1;      // of what all texts begin with
  bool owns_prefix_ = false;
  std::vector<Proposal> proposals_;
  std::vector<int32_t> row_;   // of a node among the internal ones, -1 = a leaf
  int n_internal_ = 0;
  std::vector<float> logits_;  // [sequences * n_internal_, vocab]
  std::vector<float> level_logits_;  // of a level, if the vocabularies differ
  Tensor logits_view_;
  kv::Step step_;              // the last forward, not committed yet
  std::vector<int> chains_;    // by sequence: rows of step_ before those of the nodes below the root
  int levels_run_ = 0;         // levels whose nodes step_ holds
  double bytes_read_ = 0;
};

}  // namespace tandem::spec
