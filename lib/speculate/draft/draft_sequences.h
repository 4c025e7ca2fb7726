#pragma once
#include <deque>
#include <map>
#include <span>
#include <vector>

#include "speculate/reader.h"
#include "speculate/round/round.h"
#include "speculate/tree/token_tree.h"

namespace tandem::speculate {

/// The sequences of a run as a draft reads them, and the forwards of a round over a tree after
/// them, of one shape for all: each level of the tree is one over its own nodes, which see the
/// levels above in the cache. The deepest level needs none: its keys are computed when it has been
/// accepted. A draft that is a second reader of the target's cache reads the target's own
/// sequences; what it writes after them is tentative, and the target's forward writes over it. Any
/// other has copies of the sequences in its own cache.
class DraftSequences {
 public:
  /// What the draft's cache may lack of a sequence when a round begins: the token drawn last, an
  /// accepted leaf before it, and where rounds are within another the token before that, for the
  /// last of those ends so, too.
  static constexpr int kMaxUnread = kNewestTokens;

  /// is_asked  whether any round asks something of the draft; else no sequence is read
  DraftSequences(Reader draft, Reader target, bool is_asked);
  ~DraftSequences();
  DraftSequences(const DraftSequences&) = delete;
  DraftSequences& operator=(const DraftSequences&) = delete;

  /// Before all below.
  /// is_within  rounds are within others
  void join(bool is_within) { max_unread_ = is_within ? kMaxUnread : kMaxUnread - 1; }
  /// All sequences from now on begin with these tokens, which are read once.
  void share(std::span<const int32_t> prefix);
  /// As share, of tokens that this slot of the draft's cache holds; it stays the caller's.
  void continue_from(int slot);
  /// Takes in sequences but for the tokens that a round may lack, where more are lacking.
  /// returns  whether there were any
  bool read(std::span<const decode::DrawSeq> seqs);

  /// Lays out the forwards of a round that has begun. The first takes the unread tokens of the
  /// sequences, the root the last of them, the others a level's nodes, of every sequence as many.
  /// round   its tree of two levels at least
  const std::vector<kv::Step>& begin(Round& round);
  /// Tokens that the first forward takes, in the round that has begun.
  std::span<const int32_t> unread(const decode::DrawSeq& seq) const;
  /// Of a sequence in a round, on a GPU: one number, so that one recording serves all rounds. So
  /// too where a round may be ahead: what lacks then is not known.
  int max_unread() const { return is_shared_ ? 1 : max_unread_; }
  /// Nodes from this one on have no keys: they are drawn, not run.
  int nodes_run() const { return nodes_run_; }

  /// On the cache's device, work that moves the keys of accepted paths to follow their roots.
  void keep(const kv::PagedStore::AcceptedPaths& paths);
  /// Ends the oldest round under way, whose keys have been moved.
  /// gone     [seqs] sequences that have ended since
  void accept(std::span<const std::span<const int32_t>> paths, const std::vector<bool>& gone);
  /// The same where that was a chain, made by rounds within a round: the number of its tokens that
  /// were accepted.
  void accept_chains(std::span<const int> accepted, const std::vector<bool>& gone);
  /// Rounds under way are not accepted any more.
  void abandon() { flights_.clear(); }
  /// The target's sequence of this slot has ended.
  void forget(int slot);

 private:
  kv::Cache& cache() const { return draft_.engine->cache(); }
  int slot_of(const decode::DrawSeq& seq) const {
    return is_shared_ ? seq.slot : slots_.at(seq.slot);
  }
  std::vector<kv::Step> lay_out(Round& round) const;
  /// A round under way.
  struct Flight {
    std::vector<int32_t> slots;  // the draft's
    std::vector<int> unread;
    std::vector<int> text;  // tokens of each sequence as it began, those known so far
    int nodes_run;
  };

  /// How a round changed a sequence.
  struct Ended {
    int accepted = 0;  // tokens, and one more
    int held = 0;      // of the accepted ones, whose keys the draft has; below 0 of those before
  };
  void end_round(const Flight& flight, std::span<const Ended> ended, const std::vector<bool>& gone);

  Reader draft_;
  bool is_asked_, is_shared_;
  int max_unread_ = kMaxUnread - 1;
  std::map<int, int> slots_;  // target's -> draft's
  int prefix_slot_ = -1;
  bool owns_prefix_ = false;
  const TokenTree* tree_ = nullptr;  // of the round
  int nodes_run_ = 0;                // of it, those above the deepest level
  std::deque<Flight> flights_;       // oldest first
  // Of the round; the next one's too, if it has the same tree, as many sequences and unread tokens:
  std::vector<kv::Step> steps_;
  std::vector<int32_t> round_slots_;  // the draft's, by sequence
  std::vector<int> unread_;           // by sequence
};

}  // namespace tandem::speculate
