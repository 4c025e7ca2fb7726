#pragma once
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "speculate/round/round.h"
#include "speculate/round/round_stats.h"

namespace tandem::speculate {

/// Proposes what may follow sequences, on the device where the target computes. Sequences are
/// named by the slots of the target's cache. Of each round it is asked for a shape, then to lay its
/// work out, to put that work on the queue, and how the round ended. The empty defaults suit
/// drafters that run no model.
class Drafter {
 public:
  virtual ~Drafter() = default;
  /// Whether children are drawn by Round::draw_children; else they come about in any way that does
  /// not look at the random numbers of the round.
  virtual bool draws_children() const = 0;
  /// Nodes of a level, where Round::grow_beams makes the children, which are not drawn then; 0: it
  /// does not.
  virtual int beams() const { return 0; }
  /// Whether its work finds proposals in the sequences' tokens, by Round::look_up: in rounds within
  /// others.
  virtual bool reads_text() const { return false; }
  /// What records call it.
  virtual std::string name() const = 0;
  /// Rounds within a round that its proposals come out of, at most; 0: they do not.
  virtual int rounds_within() const { return 0; }
  /// The largest tree that it proposes; one with branches, if there is any.
  virtual const TokenTree& largest() const = 0;
  /// For all of them.
  virtual TreeRoom room() const { return TreeRoom::of(largest()); }
  /// How it reads the target's own sequences, if it does.
  virtual std::vector<kv::Reading> readings() const { return {}; }
  /// Bytes of a round's outbox that it takes for max_seqs sequences.
  virtual size_t outbox_bytes(int /*max_seqs*/) const { return 0; }
  /// Sequences of a round that it has room for; rounds are laid out for more than they have.
  virtual int max_places() const { return std::numeric_limits<int>::max(); }

  /// All sequences from now on begin with these tokens, which are read once.
  virtual void share(std::span<const int32_t> /*prefix*/) {}
  /// As share, of tokens that this slot of the draft's cache holds already; it stays the caller's.
  virtual void continue_from(int /*draft_slot*/) {}
  /// Takes in sequences ahead of their first round, where it would cost much there.
  virtual void read(std::span<const decode::DrawSeq> /*seqs*/) {}
  /// The sequence of this slot has ended.
  virtual void forget(int /*slot*/) {}
  /// Time passes that belongs to no round.
  virtual void pause() {}

  /// All rounds will be this one, which outlives its work; once, before the first.
  virtual void join(Round& /*round*/) {}
  /// Rounds under way are not accepted any more.
  virtual void abandon() {}
  /// A round begins: seqs[i].tokens are all tokens, the last of them the root.
  /// returns  the shape of all its proposals, one of few, each the same object every time
  virtual const TokenTree& shape(std::span<const decode::DrawSeq> /*seqs*/) { return largest(); }
  /// Lays out the round's work on the host. What is proposed there goes to round.host_tokens(),
  /// which hold the roots; what the work reads goes to round.outbox(), of the same size in every
  /// round of this shape for as many places.
  virtual void prepare(Round& /*round*/) {}
  /// Work that proposes what the host did not.
  virtual void draft(Round& /*round*/) {}
  /// Work that moves the keys of the accepted paths to follow their roots.
  virtual void keep(Round& /*round*/) {}
  /// Whether graphs may record that work.
  virtual bool is_recordable() const { return true; }
  /// Whether the next round may begin before the last one is over: nothing is then said on the host
  /// that depends on how that one ends.
  virtual bool may_be_ahead() const { return false; }
  /// How the oldest round that was not accepted yet ended.
  /// gone     [seqs] sequences that have ended since it began
  virtual void accept(const RoundResults& /*results*/, const std::vector<bool>& /*gone*/) {}
  /// The same of rounds within another: how many tokens of each chain that they made were accepted.
  virtual void accept_chains(std::span<const int> /*accepted*/, const std::vector<bool>& /*gone*/) {
  }
  /// What the rounds within its rounds have done, if there are any.
  virtual const RoundStats* stats_within() const { return nullptr; }
  /// Weights, keys and values read so far.
  virtual double bytes_read() const { return 0; }
};

}  // namespace tandem::speculate
