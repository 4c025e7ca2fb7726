#pragma once
// What the groups of a traversal know of its nodes, and how they find work.
#include "kernels/sample/row_group.cuh"
#include "kernels/tree/node_step.h"
#include "kernels/tree/traverse_trees.h"

namespace tandem::cuda::inline TANDEM_GPU_BODY {

/// As a token of a record: a row of the node has no meaning.
constexpr int32_t kNonsense = -2;

/// What a group does next.
struct alignas(16) Job {
  enum Kind : int32_t {
    none,
    lay_out,     // the nodes of all trees
    visit,       // a node
    pass_by,     // a node that is not reached
    find_end,    // of a sequence's path
    draw_bonus,  // after the leaf where it ends
  };
  Kind kind;
  int32_t seq, node;
  int32_t depth;  // of a leaf
};

__device__ inline int lane() { return static_cast<int>(threadIdx.x % kWarp); }
__device__ inline int warp() { return static_cast<int>(threadIdx.x / kWarp); }

template <class T>
__device__ T volatile_load(const T* from) {
  return *static_cast<const volatile T*>(from);
}

/// The nodes of all trees of a launch, in device memory. A record's words are each written whole,
/// by one thread.
class TraversalNodes {
 public:
  /// nodes    where their memory begins in the workspace
  __device__ TraversalNodes(const VerifyTreesParams& p, int64_t nodes) : p_(p) {
    char* const workspace = static_cast<char*>(p.workspace);
    const int n = p.node_begin[p.n_seqs];
    board_ = reinterpret_cast<TraversalBoard*>(workspace + kBoardOffset);
    link_ = reinterpret_cast<NodeLink*>(workspace + nodes);
    record_ = reinterpret_cast<NodeRecord*>(link_ + n);
    n_pending_ = reinterpret_cast<int*>(record_ + n);
  }

  __device__ NodeLink* links(int begin) const { return link_ + begin; }
  __device__ NodeRecord& record(int at) const { return record_[at]; }
  __device__ int parent_of(int begin, int node) const { return link_[begin + node].parent; }
  __device__ TraversalBoard& board() const { return *board_; }

  /// By one thread.
  __device__ void wait_until_ready() const {
    while (volatile_load(&board_->is_ready) == 0) __nanosleep(20);
    __threadfence();
  }
  /// What a node is reached with, once its parent's group tells. By one thread, when all is ready.
  __device__ Reach wait_for_reach(int at) const {
    uint64_t weight, share;
    for (;;) {
      asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                   : "=l"(weight), "=l"(share)
                   : "l"(record_[at].reach)
                   : "memory");
      if (weight != 0 && share != 0) return {weight >> 1, share >> 1};
      __nanosleep(20);
    }
  }
  /// By one thread.
  __device__ void tell(int at, Reach reach) const {
    asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(record_[at].reach),
                 "l"(reach.weight << 1 | 1), "l"(reach.share << 1 | 1)
                 : "memory");
  }
  /// Whether the node's parent has said already that it is not reached.
  __device__ bool is_passed_by(int at) const {
    if (volatile_load(&board_->is_ready) == 0) return false;
    __threadfence();
    return volatile_load(&record_[at].reach[0]) == kNothing;
  }
  /// Ends a node: whether no other of the sequence is left. By one warp.
  __device__ bool is_last_of(int b) const {
    __syncwarp();
    int before = 0;
    if (lane() == 0) {
      __threadfence();
      before = atomicSub(&n_pending_[b], 1);
      __threadfence();
    }
    return __shfl_sync(kAllLanes, before, 0) == 1;
  }

  /// A warp a sequence. Nodes without a parent are not reached.
  __device__ void lay_out(RowGroup& row) const {
    for (int b = row.rank() * kRowWarps + warp(); b < p_.n_seqs; b += row.parts() * kRowWarps) {
      const int begin = p_.node_begin[b], n_nodes = p_.node_begin[b + 1] - begin;
      int count = 0;
      for (int node = lane(); node < n_nodes; node += kWarp) {
        const int at = begin + node, n = p_.n_children[at];
        link_[at] = {-1, n > 0 ? p_.first_child[at] : 0, n, 0};
        record_[at] = {{kNothing, kNothing}, 0, kInvalidToken, 0, 0};
        count += node == 0 || n > 0;
      }
      __syncwarp();
      for (int node = lane(); node < n_nodes; node += kWarp) {
        const NodeLink link = link_[begin + node];
        for (int i = 0; i < link.n_children; ++i) {
          const int child = begin + link.first_child + i;
          link_[child].parent = node;
          record_[child].reach[0] = record_[child].reach[1] = 0;
        }
      }
      count = __reduce_add_sync(kAllLanes, count);
      if (lane() == 0) n_pending_[b] = count;
    }
    __threadfence();
    row.sync();
    if (row.rank() == 0 && threadIdx.x == 0) {
      __threadfence();
      *static_cast<volatile unsigned*>(&board_->is_ready) = 1;
    }
  }

 private:
  static constexpr uint64_t kNothing = 1;  // weight 0, told

  const VerifyTreesParams& p_;
  TraversalBoard* board_;
  NodeLink* link_;
  NodeRecord* record_;
  int* n_pending_;
};

/// The work of a group. By one warp, and by the same in every call.
class JobQueue {
 public:
  __device__ JobQueue(const VerifyTreesParams& p, const TraversalNodes& nodes, unsigned n_groups)
      : p_(p), nodes_(nodes), n_groups_(n_groups) {
    for (int b = lane(); b < p_.n_seqs; b += kWarp)
      most_nodes_ = max(most_nodes_, p_.node_begin[b + 1] - p_.node_begin[b]);
    most_nodes_ = __reduce_max_sync(kAllLanes, most_nodes_);
  }

  /// done     sequence of which the group has ended a node; -1: none
  __device__ Job take(int done) {
    if (done >= 0 && nodes_.is_last_of(done)) return {Job::find_end, done, 0, 0};
    unsigned ticket = 0;
    if (lane() == 0) ticket = atomicAdd(&nodes_.board().ticket, 1u);
    ticket = __shfl_sync(kAllLanes, ticket, 0);
    if (ticket == 0) return {Job::lay_out, 0, 0, 0};
    const Job job = find(static_cast<int>(ticket) - 1);
    if (job.kind == Job::none) leave();
    return job;
  }

 private:
  /// The last group to find nothing leaves the board as it was at first.
  __device__ void leave() {
    if (lane() != 0) return;
    TraversalBoard& board = nodes_.board();
    if (atomicAdd(&board.n_gone, 1u) == n_groups_ - 1) board = {0, 0, 0};
  }

  /// The node of that number among those with children and roots, in the order (node, sequence), in
  /// which parents come first. Numbers ascend from call to call.
  __device__ Job find(int number) {
    for (const int end = most_nodes_ * p_.n_seqs; place_ < end; place_ += kWarp) {
      const int place = place_ + lane(), node = place / p_.n_seqs, b = place % p_.n_seqs;
      const int begin = p_.node_begin[b];
      const bool counts =
          begin + node < p_.node_begin[b + 1] && (node == 0 || p_.n_children[begin + node] > 0);
      const unsigned all = __ballot_sync(kAllLanes, counts);
      const int before = n_before_ + __popc(all & ((1u << lane()) - 1));
      const unsigned it = __ballot_sync(kAllLanes, counts && before == number);
      if (it == 0) {
        n_before_ += __popc(all);
        continue;
      }
      const int from = __ffs(static_cast<int>(it)) - 1;
      const int skips = lane() == from && node > 0 && nodes_.is_passed_by(begin + node);
      return {__shfl_sync(kAllLanes, skips, from) != 0 ? Job::pass_by : Job::visit,
              __shfl_sync(kAllLanes, b, from), __shfl_sync(kAllLanes, node, from), 0};
    }
    return {Job::none, 0, 0, 0};
  }

  const VerifyTreesParams& p_;
  const TraversalNodes& nodes_;
  unsigned n_groups_;
  int most_nodes_ = 0, place_ = 0, n_before_ = 0;  // see find()
};

}  // namespace tandem::cuda::inline TANDEM_GPU_BODY
