#pragma once
#include <map>
#include <span>
#include <vector>

#include "decode/engine.h"
#include "kv/step.h"
#include "speculate/tree/token_tree.h"

namespace tandem::speculate {

/// The texts of a run in a draft's cache, and the forwards of a round over trees of fixed shape
/// behind them: each level of the tree is one over its own nodes, which see the levels above in the
/// cache. The deepest level needs none: its keys are computed when it has been accepted.
class DraftTexts {
 public:
  /// What the cache may lack of a text when a round begins: the token drawn last, and an accepted
  /// leaf before it.
  static constexpr int kMaxUnread = 2;

  DraftTexts(decode::Engine& draft, const TokenTree& tree);
  ~DraftTexts();
  DraftTexts(const DraftTexts&) = delete;
  DraftTexts& operator=(const DraftTexts&) = delete;

  /// Nothing is asked of the draft: no text is read, and no round begun.
  bool is_lone_root() const { return nodes_run_ == 0; }
  /// All texts from now on begin with these tokens, which are read once.
  void share(std::span<const int32_t> prefix);
  /// As share, of tokens that this slot of the draft's cache holds; it stays the caller's.
  void continue_from(int slot);
  /// Takes in texts but for their last tokens, where more than kMaxUnread are lacking.
  void read(std::span<const decode::DrawSeq> seqs);

  /// Lays out a round's forwards. The first takes the unread tokens of the texts, the root the last
  /// of them, the others a level's nodes, of every sequence as many.
  /// at_least  so many tokens of each text count as unread, if it has them: known ones are
  ///           read again
  /// outbox    kv::Cache::begin's
  const std::vector<kv::Step>& begin(std::span<const decode::DrawSeq> seqs, int at_least = 1,
                                     Outbox* outbox = nullptr);
  /// Tokens that the first forward takes, in the round that has begun.
  std::span<const int32_t> unread(const decode::DrawSeq& seq) const;
  /// Weights, keys and values that the forwards of that round read.
  double bytes_of_round() const { return bytes_of_round_; }
  /// Nodes from this one on have no keys: they are drawn, not run.
  int nodes_run() const { return nodes_run_; }

  /// Ends the round: keeps the accepted nodes that were run.
  /// moved     their keys stand behind the root's already
  void accept(std::span<const std::span<const int32_t>> paths, bool moved);
  /// The target's sequence of this slot has ended.
  void forget(int slot);

 private:
  int slot_of(const decode::DrawSeq& seq) const { return slots_.at(seq.slot); }
  std::vector<kv::Step> lay_out(Outbox* outbox);

  decode::Engine& draft_;
  const TokenTree& tree_;
  int nodes_run_;
  std::map<int, int> slots_;  // target's -> draft's
  int prefix_slot_ = -1;
  bool owns_prefix_ = false;
  // Of the round; the next one's too, if it has as many sequences and unread tokens:
  std::vector<kv::Step> steps_;
  std::vector<int32_t> round_slots_;  // the draft's, by sequence
  std::vector<int> unread_, kept_;    // by sequence
  double bytes_of_round_ = 0;
};

}  // namespace tandem::speculate
