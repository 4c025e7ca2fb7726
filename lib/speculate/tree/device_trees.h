#pragma once
#include <memory>

#include "kv/paged_store.h"
#include "speculate/tree/token_tree.h"
#include "tensor/arena.h"
#include "tensor/exec.h"
#include "tensor/outbox.h"

namespace tandem::speculate {

/// Trees of one shape, one for each sequence of a batch, in a GPU's memory: what a round sends
/// there, the tokens that it proposes, and what verification says of them. Arrays keep their
/// places, for graphs; one copy brings all that the host has to say, another all results.
/// layout   [seqs, ...] with seqs the sequences of the round; nodes as in
///          TokenTree
class DeviceTrees {
 public:
  struct Bounds {
    int max_seqs = 0;
    int max_tokens = 0;       // of one sequence, for rules that ask for a text's tokens
    size_t outbox_bytes = 0;  // of what the round's forwards send along
    int vocab = 0;
    cuda::Gpu gpu = {};
  };
  /// Moments of a round.
  enum Moment { begun, drafted, scored, verified, n_moments };
  struct Arrays {
    // The host's:
    uint64_t* seed;       // [1]
    int32_t* seen_begin;  // [seqs + 1]
    int32_t* sequence;    // [seqs] names random numbers, with the next
    int32_t* position;    // [seqs] tokens of the text, the root the last of them
    int32_t* forced;      // [seqs, nodes] simulated acceptance: nodes of the path
    int32_t* forced_n;    // [seqs] and their number
    // Roots, or all nodes, are the host's:
    int32_t* tokens;  // [seqs, nodes]
    // The GPU's:
    int32_t* path;        // [seqs, nodes] accepted nodes in order, the root left out
    int32_t* n_accepted;  // [seqs]
    int32_t* bonus;       // [seqs] the token after the path
    float* logprobs;      // [seqs, nodes] of the path's tokens and the bonus, natural log
    int32_t* n_rounded;   // [seqs]
    uint64_t* clock;      // [n_moments] ns
    // The host's, where a rule asks for it:
    int32_t* seen;  // [max_seqs * max_tokens] the texts, for penalties
  };
  /// The tree's arrays, alike for every sequence.
  struct Shape {
    const int32_t* first_child;  // [max_seqs, nodes]
    const int32_t* n_children;   // [max_seqs, nodes]
    const int32_t* row;  // [max_seqs, nodes] place among all nodes, row of the target's logits
    const int32_t* node_begin;  // [max_seqs + 1] first of these places
  };

  static void plan(const TokenTree& tree, const Bounds& bounds, Device device, MemoryPlan& plan);
  DeviceTrees(const TokenTree& tree, const Bounds& bounds, Arena& arena, const Exec& exec);

  const TokenTree& tree() const { return tree_; }
  const Shape& shape() const { return shape_; }
  const Arrays& on_gpu() const { return on_gpu_; }
  const Arrays& on_host() const { return on_host_; }
  /// Workspace of the kernels that draw and verify a round's trees, or null.
  void* row_workspace() const { return rows_; }

  /// The accepted paths, for the moves of their keys; nodes from n_nodes_held on have none.
  kv::PagedStore::AcceptedPaths paths(int n_seqs, int n_nodes_held) const {
    return {.path = on_gpu_.path,
            .n_accepted = on_gpu_.n_accepted,
            .position = on_gpu_.position,
            .n_seqs = n_seqs,
            .n_nodes = tree_.size(),
            .n_nodes_held = n_nodes_held,
            .max_depth = tree_.levels() - 1};
  }

  /// What goes along with the host's arrays. To be cleared when a round begins, which must not be
  /// before the last is over.
  Outbox& outbox() { return outbox_; }
  /// Sends so many tokens of the texts.
  void send_seen(int n_seen);
  /// Brings what is the host's but `seen`, and the outbox; may be recorded in a graph, for rounds
  /// whose outboxes hold as much.
  void send();
  /// Brings tokens and what is the GPU's to the host; may be recorded in a graph.
  void fetch();
  /// Puts the forced paths in the place of those that verification found; may be recorded in a
  /// graph.
  void accept_forced();
  /// Writes the time when the work so far is done; may be recorded in a graph.
  void mark(Moment moment);

 private:
  void copy(void* to, const void* from, size_t bytes);

  TokenTree tree_;
  Exec exec_;
  std::unique_ptr<cuda::PinnedBuffer> pinned_;
  Outbox outbox_;
  Shape shape_;
  Arrays on_gpu_, on_host_;
  void* rows_;
};

}  // namespace tandem::speculate
