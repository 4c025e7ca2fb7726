#pragma once
#include <span>
#include <string>

#include "decode/sampler.h"
#include "kernels/tree/verify_trees.h"
#include "spec/device_trees.h"

namespace tandem::spec {

/// Proposes trees of one shape in a GPU's memory, as work on the queue of the target's engine. A
/// round calls prepare, then puts the recorded work of draft and of keep on the queue, then accept.
class GpuDrafter {
 public:
  virtual ~GpuDrafter() = default;
  virtual const TokenTree& tree() const = 0;
  /// residual: children are drawn as ops::draw_children does; match: in any way that does not look
  /// at the random numbers of the round.
  virtual AcceptBy accept_by() const = 0;
  /// What records call it.
  virtual std::string name() const = 0;

  virtual void start(const decode::SamplerSpec& spec) = 0;
  /// All texts from now on begin with these tokens, which are read once.
  virtual void share(std::span<const int32_t> prefix) = 0;
  /// As share, of tokens that this slot of the draft's cache holds already; it stays the caller's.
  virtual void continue_from(int draft_slot) = 0;
  /// Takes in texts ahead of their first round, where it would cost much there.
  virtual void read(std::span<const decode::DrawSeq> seqs) = 0;
  /// A round begins: seqs[i].tokens are all tokens, the last of them the root. What is proposed on
  /// the host goes to trees.on_host().tokens, where the roots are already.
  /// returns  a name of the work to come: rounds of equal names repeat the same recorded work
  virtual int prepare(std::span<const decode::DrawSeq> seqs, DeviceTrees& trees) = 0;
  /// Fills trees.on_gpu().tokens below the roots, where the host did not; may be recorded in a
  /// graph.
  virtual void draft(int n_seqs, DeviceTrees& trees) = 0;
  /// Logits that children were drawn from, [*, vocab] f32, and for every node the row of its
  /// children, [seqs, nodes], -1 for leaves; empty and null by match.
  virtual Tensor draft_logits() const = 0;
  virtual const int32_t* draft_rows() const = 0;
  /// Moves the keys of the paths in trees.on_gpu() behind their roots; may be recorded in a graph.
  virtual void keep(int n_seqs, DeviceTrees& trees) = 0;
  /// How the round ended, for each of its sequences: the accepted nodes in order.
  virtual void accept(std::span<const std::span<const int32_t>> paths) = 0;
  /// The sequence of this slot has ended.
  virtual void forget(int slot) = 0;
  /// Weights, keys and values read so far.
  virtual double bytes_read() const = 0;
};

}  // namespace tandem::spec
