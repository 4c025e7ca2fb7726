#pragma once
// Where the path of a sequence ends, once all groups have told what they know of its nodes.
#include "kernels/tree/round_numbers.h"
#include "kernels/tree/traversal_nodes.cuh"

namespace tandem::cuda::inline TANDEM_GPU_BODY {

/// Marks of links.
constexpr unsigned kHasEnd = 1;  // the path may end here or below
constexpr unsigned kIsNonsense = 2, kIsRounded = 4;

__device__ inline float logit_of(const VerifyTreesParams& p, int at, int32_t token) {
  return p.target_logits[int64_t{p.target_row[at]} * p.vocab + token];
}

/// The path of a sequence. All threads of one block take every step together.
class PathEnd {
 public:
  /// staged   room in shared memory
  __device__ PathEnd(const VerifyTreesParams& p, const TraversalNodes& nodes, int b, void* staged,
                     size_t staged_bytes)
      : p_(p),
        nodes_(nodes),
        names_(names_of(p.numbers, b)),
        b_(b),
        begin_(p.node_begin[b]),
        n_(p.node_begin[b + 1] - begin_),
        links_(nodes.links(begin_)) {
    if (static_cast<size_t>(n_) * sizeof(NodeLink) > staged_bytes) return;
    auto* const staged_links = static_cast<NodeLink*>(staged);
    for (int i = static_cast<int>(threadIdx.x); i < n_; i += kRowThreads)
      staged_links[i] = links_[i];
    links_ = staged_links;
  }

  /// The path ends at the first node, depth first, that says so. Writes the results but for what
  /// follows a leaf. The first warp knows the end after it.
  __device__ Job find() {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < n_; i += kRowThreads) {
      const unsigned marks = marks_of(i, links_[i]);
      if (marks != 0) atomicOr(&links_[i].marks, marks & ~kHasEnd);
      if ((marks & kHasEnd) == 0) continue;
      for (int q = i; q >= 0; q = links_[q].parent)
        if ((atomicOr(&links_[q].marks, kHasEnd) & kHasEnd) != 0) break;
    }
    __syncthreads();
    if (warp() != 0) return {};
    const Job end = follow();
    write_logprobs(end);
    return end;
  }

 private:
  /// What a node says of the path: marks.
  __device__ unsigned marks_of(int node, const NodeLink& link) const {
    const NodeRecord& record = nodes_.record(begin_ + node);
    const Reach reach = node == 0 ? Reach{1, 1} : Reach{record.reach[0] >> 1, record.reach[1] >> 1};
    if (reach.is_nothing()) return 0;
    const unsigned rounded = record.is_rounded != 0 ? kIsRounded : 0;
    if (link.n_children == 0)
      return rounded | (accepts(coin_of(names_, node), reach.weight, reach.share) ? kHasEnd : 0);
    return rounded | (record.token == kInvalidToken ? 0
                      : record.token == kNonsense   ? kHasEnd | kIsNonsense
                                                    : kHasEnd);
  }

  /// By one warp: the path from the root on, and what it gives.
  __device__ Job follow() {
    int node = 0, depth = 0, n_rounded = 0;
    NodeLink link = links_[0];
    while ((link.marks & kIsNonsense) == 0) {
      int next = -1;
      for (int i = lane(); i - lane() < link.n_children && next < 0; i += kWarp) {
        const bool has_end =
            i < link.n_children && (links_[link.first_child + i].marks & kHasEnd) != 0;
        const unsigned those = __ballot_sync(kAllLanes, has_end);
        if (those != 0) next = link.first_child + i - lane() + __ffs(static_cast<int>(those)) - 1;
      }
      if (next < 0) break;
      link = links_[node = next];
      if (lane() == 0) p_.path[begin_ + depth] = node;
      ++depth;
      n_rounded += (link.marks & kIsRounded) != 0;
    }
    const bool is_nonsense = (link.marks & kIsNonsense) != 0;
    const bool is_leaf = link.n_children == 0;
    if (lane() == 0) {
      p_.n_accepted[b_] = is_nonsense ? 0 : depth;
      p_.n_rounded[b_] = n_rounded;
      if (!is_leaf) p_.bonus[b_] = is_nonsense ? kInvalidToken : nodes_.record(begin_ + node).token;
      __threadfence();
    }
    __syncwarp();
    return {is_leaf ? Job::draw_bonus : Job::find_end, b_, node, is_nonsense ? -1 : depth};
  }

  /// By one warp: of the path, and of the token after it unless that is yet to be drawn.
  __device__ void write_logprobs(const Job& end) const {
    if (p_.logprobs == nullptr) return;
    const int n = end.depth + (end.kind == Job::find_end ? 1 : 0);
    const volatile int32_t* const path = p_.path + begin_;
    for (int i = lane(); i < n; i += kWarp) {
      const int at = begin_ + (i > 0 ? path[i - 1] : 0);
      const int32_t token = i < end.depth ? p_.tokens[begin_ + path[i]] : nodes_.record(at).token;
      p_.logprobs[begin_ + i] = logit_of(p_, at, token) - nodes_.record(at).lse;
    }
  }

  const VerifyTreesParams& p_;
  const TraversalNodes& nodes_;
  RoundNames names_;
  int b_, begin_, n_;
  NodeLink* links_;
};

}  // namespace tandem::cuda::inline TANDEM_GPU_BODY
