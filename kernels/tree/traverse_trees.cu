// Groups of blocks take the nodes that have children, parents before their children, and keep each
// node's rows until it is done. What a child is reached with depends on its parent's own reach and
// on siblings before it alone, so a group loads and weighs rows while others work on the nodes
// above, and then waits for its parent's group, which began earlier. The group that ends the last
// node of a sequence finds out where its path ends.
#include "kernels/tree/traverse_trees.h"

#include "kernels/tree/node_rows.cuh"
#include "kernels/tree/path_end.cuh"

namespace tandem::TANDEM_GPU_BODY {
namespace {

using cuda::Job;
using cuda::kNonsense;
using cuda::lane;
using cuda::NodeParts;
using cuda::NodeRecord;
using cuda::NodeRules;
using cuda::RowGroup;
using cuda::TraversalNodes;
using cuda::warp;

/// Published by the first block of a group. Two take turns, as RowShared's words.
struct JobShared {
  Job job[2];
  Reach reach[2];
};

template <bool kCuts>
struct Shared {
  cuda::RowShared row;
  cuda::ResidualShared residual;
  JobShared jobs;
  __device__ cuda::CutShared* cut() { return nullptr; }
};
template <>
struct Shared<true> {
  cuda::RowShared row;
  cuda::ResidualShared residual;
  JobShared jobs;
  cuda::CutShared cuts;
  __device__ cuda::CutShared* cut() { return &cuts; }
};

/// The work of a group. All threads of all blocks take every step together.
template <bool kCuts>
class Traversal {
 public:
  /// shared   of this block; jobs and the row's are published
  __device__ Traversal(const VerifyTreesParams& p, const NodeRules& rules,
                       const TraversalNodes& nodes, RowGroup& row, const NodeParts& parts,
                       Shared<kCuts>& shared, size_t parts_bytes)
      : p_(p),
        nodes_(nodes),
        row_(row),
        queue_(p, nodes, gridDim.x / static_cast<unsigned>(row.parts())),
        rows_(p, rules, row, parts, shared.residual, shared.cut()),
        parts_(parts.target),
        parts_bytes_(parts_bytes),
        keeps_path_(rules.marks),
        jobs_(shared.jobs) {}

  __device__ void run() {
    row_.sync();    // a group takes work once all its blocks have begun
    int done = -1;  // sequence of which a node is done
    for (;;) {
      Job job = next(done);
      done = -1;
      if (job.kind == Job::find_end) job = share(find_end(job));
      switch (job.kind) {
        case Job::none:
          return;
        case Job::lay_out:
          nodes_.lay_out(row_, parts_, parts_bytes_);
          break;
        case Job::draw_bonus:
          draw_bonus(job);
          break;
        case Job::visit:
          visit(job.seq, job.node), done = job.seq;
          break;
        case Job::pass_by:
          pass_by(job.seq, job.node, 0), done = job.seq;
          break;
        case Job::find_end:
          break;
      }
    }
  }

 private:
  __device__ bool is_first() const { return row_.rank() == 0; }
  __device__ bool is_leader() const { return is_first() && threadIdx.x == 0; }

  /// What the first warp of the first block has.
  __device__ Job share(const Job& job) {
    if (is_leader()) *row_.own(&jobs_.job[turn_]) = job;
    row_.sync();
    const Job shared = *row_.peer(&jobs_.job[turn_], 0);
    turn_ ^= 1;
    return shared;
  }

  __device__ Job next(int done) {
    Job job{};
    if (is_first() && warp() == 0) job = queue_.take(done);
    return share(job);
  }

  /// Known in the first warp of the first block.
  __device__ Job find_end(const Job& job) {
    if (!is_first()) return job;
    return cuda::PathEnd(p_, nodes_, job.seq, parts_, parts_bytes_).find();
  }

  /// Nothing of a node's children from `begin` on is reached.
  __device__ void pass_by(int b, int node, int begin) const {
    if (!is_first() || warp() != 0) return;
    const int at = p_.node_begin[b] + node, n = p_.n_children[at];
    const int first = n > 0 ? p_.node_begin[b] + p_.first_child[at] : 0;
    for (int i = begin + lane(); i < n; i += cuda::kWarp) nodes_.announce(first + i, {0, 0});
    __syncwarp();
  }

  /// What a node is reached with, once that is known. The leader then calls first(reach) at once.
  template <class First>
  __device__ Reach wait_for_reach(int b, int at, bool is_root, const First& first) {
    if (is_leader()) {
      nodes_.wait_until_ready();
      const Reach reach = is_root ? Reach{1, 1} : nodes_.wait_for_reach(b, at);
      first(reach);
      *row_.own(&jobs_.reach[turn_]) = reach;
    }
    __syncwarp();
    row_.sync();
    const Reach reach = *row_.peer(&jobs_.reach[turn_], 0);
    turn_ ^= 1;
    return reach;
  }

  /// Reads the node's rows as they are after its path.
  __device__ bool read(int b, int begin, int node, bool has_drawn) {
    int depth = 0;
    if (keeps_path_) {
      if (threadIdx.x == 0) nodes_.wait_until_ready();
      __syncthreads();
      for (int q = node; q > 0; q = nodes_.parent_of(begin, q)) ++depth;
    }
    return rows_.read(b, node, has_drawn, depth, [&](int i) {
      int q = node;
      for (; i > 0; --i) q = nodes_.parent_of(begin, q);
      return p_.tokens[begin + q];
    });
  }

  __device__ ChildKind kind(int child) const {
    return child < p_.n_drawn ? ChildKind::drawn : ChildKind::fixed;
  }
  /// Whether a child's reach cannot be announced before its rejection is worked out:
  /// that may be within rounding of nothing, and makes a difference to one not certainly reached.
  __device__ bool may_round(Reach of_child) {
    return of_child.weight > 0 && of_child.weight < of_child.share &&
           !rows_.residual().leaves_something(of_child);
  }

  __device__ void visit(int b, int node) {
    const int begin = p_.node_begin[b], at = begin + node, n = p_.n_children[at];
    if (n == 0) {  // a root alone
      wait_for_reach(b, at, true, [&](Reach) { nodes_.may_end(b, at); });
      return;
    }
    const int first = p_.first_child[at];
    const RoundNames names = names_of(p_.numbers, b);
    const double coin = coin_of(names, node);
    const bool has_meaning = read(b, begin, node, p_.n_drawn > 0);
    if (has_meaning) {
      rows_.weigh(p_.tokens[begin + first]);
      rows_.residual().first(p_.tokens[begin + first]);
    }
    const Reach reach = wait_for_reach(b, at, node == 0, [&](Reach r) {
      if (r.is_nothing() || !has_meaning) return;
      const Reach of_child = rows_.residual().reach_of_first(kind(0), r.value());
      if (!may_round(of_child)) nodes_.announce(begin + first, of_child);
    });
    if (reach.is_nothing()) return pass_by(b, node, 0);
    NodeRecord& record = nodes_.record(at);
    if (is_leader()) record.lse = rows_.lse();
    if (!has_meaning) {
      if (is_leader()) {
        record.token = kNonsense;
        nodes_.may_end(b, at);
      }
      return pass_by(b, node, 0);
    }
    const double certainty = reach.value();
    if (certainty < 1.0) rows_.residual().reached(certainty);
    const int n_tried = try_children(names, b, node, coin);
    pass_by(b, node, n_tried);
    if (!stays_) return;
    if (is_leader()) nodes_.may_end(b, at);
    const int token = rows_.residual().draw(uniform_after(names, node, 0, true));
    if (token >= 0 && lane() == 0) {
      record.token = token;
      __threadfence();
    }
    row_.sync();
  }

  /// A leaf is tried when it is known what it is reached with. By one warp of the first block, of
  /// which lane i looks after child i, i + 32 and so on.
  __device__ void try_leaf(const RoundNames& names, int b, int first, int i, Reach reach) const {
    if (!is_first() || warp() != 1 || lane() != i % cuda::kWarp) return;
    const int at = p_.node_begin[b] + first + i;
    if (p_.n_children[at] == 0 && accepts(coin_of(names, first + i), reach.weight, reach.share))
      nodes_.may_end(b, at);
  }

  /// Announces what the children are reached with, as traverse of verify_trees.inl works it out;
  /// returns how many of them know. The first one does unless it may round. Sets stays_.
  __device__ int try_children(const RoundNames& names, int b, int node, double coin) {
    const int begin = p_.node_begin[b], n = p_.n_children[begin + node];
    const int first = p_.first_child[begin + node];
    const int32_t* tokens = p_.tokens + begin + first;
    cuda::RowResidual& left = rows_.residual();
    const auto may_stay = [&] { return node == 0 || accepts(coin, left.total(), left.unit()); };
    stays_ = false;
    for (int i = 0; i < n; ++i) {
      const int child = begin + first + i;
      const bool is_last = i + 1 == n;
      const Reach of_child = left.reach_of(kind(i));
      const bool waits = may_round(of_child);
      if (!waits) {
        if (i > 0 && is_leader()) nodes_.announce(child, of_child);
        try_leaf(names, b, first, i, of_child);
      }
      if (is_leader()) left.vote(nodes_.is_beyond_end(b, begin + node));
      if (!left.knows_total() && (is_last || kind(i) == ChildKind::fixed)) left.scale();
      const bool rejects = !left.knows_total() || (left.total() > 0 && !(is_last && !may_stay()));
      const bool is_rounded =
          rejects && left.reject<true>(kind(i), is_last ? -1 : tokens[i + 1]).is_nothing() &&
          of_child.weight > 0;
      if (waits) {
        const Reach known = is_rounded ? Reach{1, 1} : of_child;
        if (is_leader()) {
          nodes_.record(child).is_rounded =
              is_rounded && !accepts(coin_of(names, first + i), of_child.weight, of_child.share);
          nodes_.announce(child, known);
        }
        try_leaf(names, b, first, i, known);
      }
      if (is_rounded || left.total() == 0 || left.votes() > 0) return i + 1;
    }
    stays_ = may_stay();
    return n;
  }

  /// After a leaf the token comes from its own row.
  __device__ void draw_bonus(const Job& end) {
    const int b = end.seq, begin = p_.node_begin[b];
    if (!read(b, begin, end.node, false)) {
      if (is_leader()) p_.bonus[b] = kInvalidToken, p_.n_accepted[b] = 0;
      return;
    }
    const RoundNames names = names_of(p_.numbers, b);
    const int token = rows_.draw(uniform_after(names, end.node, end.depth, false));
    if (token < 0 || lane() != 0) return;
    p_.bonus[b] = token;
    if (p_.logprobs != nullptr)
      p_.logprobs[begin + end.depth] = cuda::logit_of(p_, begin + end.node, token) - rows_.lse();
  }

  const VerifyTreesParams& p_;
  const TraversalNodes& nodes_;
  RowGroup& row_;
  cuda::JobQueue queue_;
  cuda::NodeRows<true, kCuts> rows_;
  float* parts_;
  size_t parts_bytes_;
  bool keeps_path_;
  JobShared& jobs_;
  int turn_ = 0;
  bool stays_ = false;
};

/// nodes    where the memory of nodes begins in the workspace
template <bool kCuts>
__global__ void __launch_bounds__(cuda::kRowThreads, cuda::kBlocksASm)
    traverse(const VerifyTreesParams p, const NodeRules rules, const int64_t nodes,
             const cuda::RowSplit split) {
  extern __shared__ float4 dynamic[];
  __shared__ Shared<kCuts> shared;
  cuda::start_after_previous();
  const cuda::RowLink link(split, shared);
  const int part_size = cuda::kRowThreads * split.run;
  const NodeParts parts(link.data(reinterpret_cast<float*>(dynamic)), part_size, true);
  RowGroup row(split, link, parts.target, shared.row);
  const TraversalNodes all(p, nodes);
  Traversal<kCuts>(p, rules, all, row, parts, shared,
                   3 * sizeof(float) * static_cast<size_t>(part_size))
      .run();
  row.sync();  // others may still read this block's shared memory
}

}  // namespace

void traverse_trees(const VerifyTreesParams& t, Stream stream) {
  const NodeRules rules(t, true);
  const cuda::Gpu& gpu = cuda::gpu();
  const cuda::RowGroups groups = cuda::split_among_groups(
      gpu, t.vocab, t.n_seqs, rules.cuts ? sizeof(Shared<true>) : sizeof(Shared<false>));
  cuda::launch_nodes(rules.cuts ? traverse<true> : traverse<false>, groups.n, groups.split, 3, t,
                     rules, stream, cuda::nodes_begin(gpu, t));
}

}  // namespace tandem::TANDEM_GPU_BODY
