#pragma once
#include <map>
#include <span>
#include <vector>

#include "speculate/reader.h"
#include "speculate/tree/token_tree.h"

namespace tandem::speculate {

/// The sequences of a run as a draft reads them, and the forwards of a round over a tree behind
/// them, of one shape for all: each level of the tree is one over its own nodes, which see the
/// levels above in the cache. The deepest level needs none: its keys are computed when it has been
/// accepted. A draft that is a second reader of the target's cache reads the target's own
/// sequences; what it writes after them is tentative, and the target's forward writes over it. Any
/// other has copies of the sequences in its own cache.
class DraftSequences {
 public:
  /// What the draft's cache may lack of a sequence when a round begins: the token drawn last, and
  /// an accepted leaf before it.
  static constexpr int kMaxUnread = 2;

  /// is_asked  whether any round asks something of the draft; else no sequence is read
  DraftSequences(Reader draft, Reader target, bool is_asked);
  ~DraftSequences();
  DraftSequences(const DraftSequences&) = delete;
  DraftSequences& operator=(const DraftSequences&) = delete;

  /// All sequences from now on begin with these tokens, which are read once.
  void share(std::span<const int32_t> prefix);
  /// As share, of tokens that this slot of the draft's cache holds; it stays the caller's.
  void continue_from(int slot);
  /// Takes in sequences but for their last tokens, where more than kMaxUnread are lacking.
  /// returns  whether there were any
  bool read(std::span<const decode::DrawSeq> seqs);

  /// Lays out a round's forwards. The first takes the unread tokens of the sequences, the root the
  /// last of them, the others a level's nodes, of every sequence as many.
  /// tree              of two levels at least; one of few, each the same object every time
  /// outbox, places    kv::StepSpec's
  const std::vector<kv::Step>& begin(const TokenTree& tree, std::span<const decode::DrawSeq> seqs,
                                     Outbox& outbox, int places);
  /// Tokens that the first forward takes, in the round that has begun.
  std::span<const int32_t> unread(const decode::DrawSeq& seq) const;
  /// Of a sequence in a round, on a GPU: one number, so that one recording serves all rounds.
  int max_unread() const { return is_shared_ ? 1 : kMaxUnread; }
  /// Nodes from this one on have no keys: they are drawn, not run.
  int nodes_run() const { return nodes_run_; }

  /// On the cache's device, work that moves the keys of accepted paths to follow their roots.
  void keep(const kv::PagedStore::AcceptedPaths& paths);
  /// Ends the round, whose keys have been moved.
  void accept(std::span<const std::span<const int32_t>> paths);
  /// The target's sequence of this slot has ended.
  void forget(int slot);

 private:
  kv::Cache& cache() const { return draft_.engine->cache(); }
  int slot_of(const decode::DrawSeq& seq) const {
    return is_shared_ ? seq.slot : slots_.at(seq.slot);
  }
  std::vector<kv::Step> lay_out(Outbox& outbox, int places) const;

  Reader draft_;
  bool is_asked_, is_shared_;
  std::map<int, int> slots_;  // target's -> draft's
  int prefix_slot_ = -1;
  bool owns_prefix_ = false;
  const TokenTree* tree_ = nullptr;  // of the round
  int nodes_run_ = 0;                // of it, those above the deepest level
  // Of the round; the next one's too, if it has the same tree, as many sequences and unread tokens:
  std::vector<kv::Step> steps_;
  std::vector<int32_t> round_slots_;  // the draft's, by sequence
  std::vector<int> unread_, kept_;    // by sequence
};

}  // namespace tandem::speculate
