#pragma once
// Where the path of a sequence ends, once all groups have published what they know of its nodes.
#include "kernels/tree/round_numbers.h"
#include "kernels/tree/traversal_nodes.cuh"

namespace tandem::cuda::inline TANDEM_GPU_BODY {

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
    __shared__ int end;
    const int order = nodes_.first_end(b_);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < n_; i += kRowThreads)
      if (links_[i].order == order) end = i;
    __syncthreads();
    if (warp() != 0) return {};
    const Job job = write_path(end);
    write_logprobs(job);
    return job;
  }

 private:
  /// By one warp.
  __device__ Job write_path(int end) const {
    const bool is_leaf = links_[end].n_children == 0;
    int depth = 0, n_rounded = 0;
    for (int q = end; q > 0; q = links_[q].parent) ++depth;
    for (int q = end, i = depth; q > 0; q = links_[q].parent) {
      if (--i % kWarp != lane()) continue;
      p_.path[begin_ + i] = q;
      n_rounded += nodes_.record(begin_ + q).is_rounded != 0;
    }
    n_rounded = __reduce_add_sync(kAllLanes, n_rounded);
    const int32_t token = nodes_.record(begin_ + end).token;
    const bool is_nonsense = !is_leaf && token == kNonsense;
    if (lane() == 0) {
      p_.n_accepted[b_] = is_nonsense ? 0 : depth;
      p_.n_rounded[b_] = n_rounded;
      if (!is_leaf) p_.bonus[b_] = is_nonsense ? kInvalidToken : token;
    }
    __threadfence();
    __syncwarp();
    return {is_leaf ? Job::draw_bonus : Job::find_end, b_, end, is_nonsense ? -1 : depth};
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
