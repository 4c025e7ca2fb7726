#pragma once
#include <span>

#include "speculate/draft/drafter.h"
#include "speculate/tree/device_trees.h"

namespace tandem::speculate {

/// Proposes trees of one shape in a GPU's memory, as work on the queue of the target's engine. A
/// round calls prepare, then puts the recorded work of draft and of keep on the queue, then accept.
class GpuDrafter : public Drafter {
 public:
  virtual const TokenTree& tree() const = 0;
  int max_nodes() const final { return tree().size(); }
  int max_depth() const final { return tree().levels() - 1; }

  /// A round begins: seqs[i].tokens are all tokens, the last of them the root. What is proposed on
  /// the host goes to trees.on_host().tokens, whose roots are the caller's, and what else the work
  /// needs to the trees' outbox.
  /// returns  a name of the work to come: rounds of equal names repeat the same recorded work
  virtual int prepare(std::span<const decode::DrawSeq> seqs, DeviceTrees& trees) = 0;
  /// Bytes of the outbox that it asks for.
  virtual size_t outbox_bytes() const { return 0; }
  /// Fills trees.on_gpu().tokens below the roots, where the host did not; may be recorded in a
  /// graph.
  virtual void draft(int /*n_seqs*/, DeviceTrees& /*trees*/) {}
  /// Logits that children were drawn from, [*, vocab] f32, and for every node the row of its
  /// children, [seqs, nodes], -1 for leaves; empty and null by match.
  virtual Tensor draft_logits() const { return {}; }
  virtual const int32_t* draft_rows() const { return nullptr; }
  /// Moves the keys of the paths in trees.on_gpu() behind their roots; may be recorded in a graph.
  virtual void keep(int /*n_seqs*/, DeviceTrees& /*trees*/) {}
};

}  // namespace tandem::speculate
