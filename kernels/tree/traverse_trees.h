#pragma once
// Verification by sequences on a GPU: what its launches keep in device memory. No STL: included by
// CUDA sources.
#include "kernels/cuda/gpu.h"
#include "kernels/tree/verify_trees.h"

namespace tandem {
namespace cuda {

/// How the groups of blocks of a launch find work and when it is done. At the workspace's
/// kBoardOffset; zero before the first launch, and left so.
struct TraversalBoard {
  unsigned ticket;    // of the next piece of work
  unsigned is_ready;  // the nodes are laid out
  unsigned n_gone;    // groups that found no more work
};
inline constexpr size_t kBoardOffset = 16;

/// A node's place in its tree.
struct alignas(16) NodeLink {
  int32_t parent;  // -1: none
  int32_t first_child, n_children;
  // In which nodes come depth first, each after all below it; -1 of one that no path leads to.
  int32_t order;
};

/// What the groups publish of a node.
struct alignas(16) NodeRecord {
  uint64_t
      reach[2];  // written by the parent's group: weight and share, each x as 2 x + 1; 0: not yet
  unsigned is_rounded;  // accepted because rounding alone stood against it; by the parent's group
  int32_t token;  // of a node with children: the last token, or why the path does not end here
  float lse;      // of the target's row; of a node with children that is reached
  unsigned unused;
};

/// What the groups publish of a sequence.
struct TraversalSeq {
  int32_t n_pending;  // nodes with children, and the root, that are not done
  int32_t first_end;  // the least order of a node where the path may end, so far
};

/// Where in the workspace of a launch the memory of nodes begins: links and records of all N nodes,
/// then the same of each of the B sequences.
/// errors   kind internal without a workspace
int64_t nodes_begin(const Gpu& gpu, const VerifyTreesParams& p);

/// Device memory that verification of up to max_seqs trees with up to max_nodes nodes in all needs,
/// by any rule. It must be zero before its first use; launches leave it ready for the next. For the
/// work of one stream. Arithmetic alone, so that a memory plan needs no GPU.
size_t verify_memory_bytes(const Gpu& gpu, AcceptBy accept_by, int vocab, int max_seqs,
                           int max_nodes);

}  // namespace cuda

namespace portable {
VerifyTreesCudaFn traverse_trees;
}
namespace hopper {
VerifyTreesCudaFn traverse_trees;
}

}  // namespace tandem
