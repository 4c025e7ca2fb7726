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
    seq_ = reinterpret_cast<TraversalSeq*>(record_ + n);
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
  /// What a node is reached with, once its parent's group says so; nothing if the path ends before
  /// it. By one thread, when all is ready.
  __device__ Reach wait_for_reach(int b, int at) const {
    for (;; __nanosleep(20)) {
      uint64_t weight, share;
      asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                   : "=l"(weight), "=l"(share)
                   : "l"(record_[at].reach)
                   : "memory");
      if (is_beyond_end(b, at)) return {0, 0};
      if (weight != 0 && share != 0) return {weight >> 1, share >> 1};
    }
  }
  /// By one thread.
  __device__ void announce(int at, Reach reach) const {
    asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(record_[at].reach),
                 "l"(reach.weight << 1 | 1), "l"(reach.share << 1 | 1)
                 : "memory");
  }
  /// The path may end at a node. By one thread.
  __device__ void may_end(int b, int at) const { atomicMin(&seq_[b].first_end, link_[at].order); }
  __device__ int first_end(int b) const { return seq_[b].first_end; }
  /// Whether the path ends before a node, and at none below it that does not know yet what it is
  /// reached with. When all is ready.
  __device__ bool is_beyond_end(int b, int at) const {
    return volatile_load(&seq_[b].first_end) < link_[at].order;
  }
  /// Whether it is known already that the path does not lead to a node.
  __device__ bool is_passed_by(int b, int at) const {
    if (volatile_load(&board_->is_ready) == 0) return false;
    __threadfence();
    return volatile_load(&record_[at].reach[0]) == kNothing || is_beyond_end(b, at);
  }
  /// Ends a node: whether no other of the sequence is left. By one warp.
  __device__ bool is_last_of(int b) const {
    __syncwarp();
    int before = 0;
    if (lane() == 0) {
      __threadfence();
      before = atomicSub(&seq_[b].n_pending, 1);
      __threadfence();
    }
    return __shfl_sync(kAllLanes, before, 0) == 1;
  }

  /// Warps take sequences in turn. Nodes without a parent are not reached.
  /// staged   room for the links of some sequences
  __device__ void lay_out(RowGroup& row, void* staged, size_t staged_bytes) const {
    int most = 0;
    for (int b = 0; b < p_.n_seqs; ++b) most = max(most, p_.node_begin[b + 1] - p_.node_begin[b]);
    const int room = static_cast<int>(staged_bytes / sizeof(NodeLink)) / max(most, 1);
    const int n_warps = room == 0 ? kRowWarps : min(room, kRowWarps);
    for (int b = row.rank() * n_warps + warp(); warp() < n_warps && b < p_.n_seqs;
         b += row.parts() * n_warps) {
      const int begin = p_.node_begin[b];
      lay_out(b, room > 0 ? static_cast<NodeLink*>(staged) + warp() * most : link_ + begin);
    }
    __threadfence();
    row.sync();
    if (row.rank() == 0 && threadIdx.x == 0) {
      __threadfence();
      *static_cast<volatile unsigned*>(&board_->is_ready) = 1;
    }
  }

 private:
  static constexpr uint64_t kNothing = 1;  // weight 0, announced

  /// A sequence, by one warp, with its links in `links`.
  __device__ void lay_out(int b, NodeLink* links) const {
    const int begin = p_.node_begin[b], n_nodes = p_.node_begin[b + 1] - begin;
    int count = 0;
    for (int node = lane(); node < n_nodes; node += kWarp) {
      const int at = begin + node, n = p_.n_children[at];
      links[node] = {-1, n > 0 ? p_.first_child[at] : 0, n, 0};
      count += node == 0 || n > 0;
    }
    count = __reduce_add_sync(kAllLanes, count);
    if (lane() == 0) seq_[b] = {count, 0x7fffffff};
    __syncwarp();
    for (int node = lane(); node < n_nodes; node += kWarp)
      for (int i = 0; i < links[node].n_children; ++i)
        links[links[node].first_child + i].parent = node;
    __syncwarp();
    if (lane() == 0) order(links, n_nodes);
    __syncwarp();
    for (int node = lane(); node < n_nodes; node += kWarp) {
      const uint64_t reach = links[node].parent < 0 ? kNothing : 0;
      record_[begin + node] = {{reach, reach}, 0, kInvalidToken, 0, 0};
      link_[begin + node] = links[node];
    }
  }

  /// First every node's `order` is the size of the tree below it, then its own.
  __device__ static void order(NodeLink* links, int n_nodes) {
    for (int node = 0; node < n_nodes; ++node) links[node].order = 1;
    for (int node = n_nodes - 1; node > 0; --node)
      if (links[node].parent >= 0) links[links[node].parent].order += links[node].order;
    for (int node = 0; node < n_nodes; ++node) {
      const NodeLink link = links[node];
      const bool is_apart = node > 0 && (link.parent < 0 || link.order < 0);
      const int own = is_apart ? -1 : node == 0 ? link.order - 1 : link.order;
      if (is_apart || node == 0) links[node].order = own;
      int last = own - 1;
      for (int i = link.n_children - 1; i >= 0; --i) {
        int32_t& child = links[link.first_child + i].order;
        const int size = child;
        child = is_apart ? -1 : last;
        last -= size;
      }
    }
  }

  const VerifyTreesParams& p_;
  TraversalBoard* board_;
  NodeLink* link_;
  NodeRecord* record_;
  TraversalSeq* seq_;
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
      const int skips = lane() == from && node > 0 && nodes_.is_passed_by(b, begin + node);
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
