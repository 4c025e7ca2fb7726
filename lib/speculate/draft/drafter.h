#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "decode/sampler.h"
#include "kernels/tree/verify_trees.h"
#include "speculate/tree/token_tree.h"

namespace tandem::speculate {

/// Proposes what may follow a text. Sequences are told apart by the slots of the target's cache.
/// What is empty here is so for drafters without a model.
class Drafter {
 public:
  virtual ~Drafter() = default;
  /// residual: children are drawn as ops::draw_children does; match: in any way that does not look
  /// at the random numbers of the round.
  virtual AcceptBy accept_by() const = 0;
  /// What records call it.
  virtual std::string name() const = 0;
  /// Nodes of a proposal, at most, the root counts.
  virtual int max_nodes() const = 0;
  /// Levels below the root, at most.
  virtual int max_depth() const = 0;

  virtual void start(const decode::SamplerSpec& /*spec*/) {}
  /// All texts from now on begin with these tokens, which are read once.
  virtual void share(std::span<const int32_t> /*prefix*/) {}
  /// As share, of tokens that this slot of the draft's cache holds already; it stays the caller's.
  virtual void continue_from(int /*draft_slot*/) {}
  /// Takes in texts ahead of their first round, where it would cost much there.
  virtual void read(std::span<const decode::DrawSeq> /*seqs*/) {}
  /// How a round ended, for each of its sequences: the accepted nodes in order, the root left out.
  virtual void accept(std::span<const std::span<const int32_t>> /*paths*/) {}
  /// The sequence of this slot has ended.
  virtual void forget(int /*slot*/) {}
  /// Weights, keys and values read so far.
  virtual double bytes_read() const { return 0; }
};

/// A tree of tokens proposed for one sequence.
struct Proposal {
  const TokenTree* tree = nullptr;  // valid until the next proposal
  std::vector<int32_t> tokens;      // [size] by node; node 0 is the sequence's last token
  /// [size] row of draft_logits() that a node's children were drawn from, -1 for leaves; empty by
  /// match.
  std::vector<int32_t> draft_row;
};

/// One whose proposals are in host memory.
class HostDrafter : public Drafter {
 public:
  /// A round begins: seqs[i].tokens are all tokens, the last of them the root.
  /// shapes   result: one for each sequence, valid until the next call
  virtual std::span<const Proposal> propose(std::span<const decode::DrawSeq> seqs) = 0;
  /// Of the last proposals: [rows, vocab] f32; empty by match.
  virtual Tensor draft_logits() const = 0;
};

}  // namespace tandem::speculate
