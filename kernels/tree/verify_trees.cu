#include "kernels/sample/sample_cuda.h"
#include "kernels/tree/floor_trees.h"
#include "kernels/tree/node_rows.cuh"
#include "kernels/tree/traverse_trees.h"

namespace tandem::TANDEM_GPU_BODY {
namespace {

using cuda::NodeParts;
using cuda::NodeRules;
using cuda::RowGroup;

/// What a node gives: a child to go on from, or else the last token.
struct Verdict {
  int child;  // index among the children; their number if none
  int32_t token;
};

/// A group's walk through the tree of its sequence. All threads of all blocks take every step
/// together, and know what it gave.
template <bool kResidual, bool kCuts>
class Walk {
 public:
  __device__ Walk(const VerifyTreesParams& p, const NodeRules& rules, int b, RowGroup& row,
                  const NodeParts& parts, cuda::ResidualShared& residual, cuda::CutShared* cut)
      : p_(p),
        names_(names_of(p.numbers, b)),
        b_(b),
        begin_(p_.node_begin[b]),
        row_(row),
        rows_(p, rules, row, parts, residual, cut) {}

  __device__ void run() {
    const bool writes = row_.rank() == 0 && threadIdx.x == 0;
    int node = 0;
    if (is_lossy(p_.accept_by)) {  // the path is there
      n_ = p_.n_accepted[b_];
      node = n_ > 0 ? p_.path[begin_ + n_ - 1] : 0;
    }
    for (;;) {
      const int n_children = is_lossy(p_.accept_by) ? 0 : p_.n_children[begin_ + node];
      const int first = n_children > 0 ? p_.first_child[begin_ + node] : 0;
      const Verdict v = decide(node, first, n_children);
      if (writes && p_.logprobs != nullptr && v.token != kInvalidToken)
        p_.logprobs[begin_ + n_] = logit(node, v.token) - rows_.lse();
      if (v.child == n_children || v.token == kInvalidToken) {
        if (!writes) return;
        p_.bonus[b_] = v.token;
        p_.n_accepted[b_] = n_;
        p_.n_rounded[b_] = n_rounded_;
        return;
      }
      node = first + v.child;
      if (writes) p_.path[begin_ + n_] = node;
      ++n_;
    }
  }

 private:
  __device__ float logit(int node, int32_t token) const {
    return p_.target_logits[int64_t{p_.target_row[begin_ + node]} * p_.vocab + token];
  }

  __device__ Verdict decide(int node, int first, int n_children) {
    const bool by_residual = kResidual && n_children > 0;
    const bool has_meaning = rows_.read(b_, node, by_residual && p_.n_drawn > 0, n_, [&](int i) {
      return p_.tokens[begin_ + p_.path[begin_ + i]];
    });
    if (!has_meaning) return {0, kInvalidToken};
    const int32_t* children = p_.tokens + begin_ + first;
    if (by_residual) return by_rejections(node, first, children, n_children);
    int32_t token = rows_.best();
    if (p_.target.temperature > 0.0f)
      token = shared_by_all(rows_.draw(uniform_after(names_, node, n_, is_rest(n_children))));
    return {index_of(token, children, n_children), token};
  }

  __device__ bool is_rest(int n_children) const {
    return weighs_draws(p_.accept_by) && n_children > 0;
  }

  __device__ Verdict by_rejections(int node, int first, const int32_t* children, int n_children) {
    rows_.weigh(children[0]);
    cuda::RowResidual& left = rows_.residual();
    const int child = left.try_children(
        children, n_children, p_.n_drawn, [&](int i) { return coin_of(names_, first + i); },
        n_rounded_);
    if (child < n_children) return {child, children[child]};
    return {child, shared_by_all(left.draw(uniform_after(names_, node, n_, true)))};
  }

  /// What one warp of the group has, the others -1.
  __device__ int32_t shared_by_all(int32_t token) {
    return static_cast<int32_t>(row_.best({static_cast<uint32_t>(token + 1), 0}).key) - 1;
  }

  /// The child that is a token, or their number.
  __device__ static int index_of(int32_t token, const int32_t* children, int n) {
    const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
    for (int i = lane; i - lane < n; i += cuda::kWarp) {
      const unsigned equal = __ballot_sync(cuda::kAllLanes, i < n && children[i] == token);
      if (equal != 0) return i - lane + __ffs(static_cast<int>(equal)) - 1;
    }
    return n;
  }

  const VerifyTreesParams& p_;
  RoundNames names_;
  int b_, begin_;
  RowGroup& row_;
  cuda::NodeRows<kResidual, kCuts> rows_;
  int n_ = 0;  // accepted
  int n_rounded_ = 0;
};

template <bool kCuts>
struct Shared {
  cuda::RowShared row;
  cuda::ResidualShared residual;
  __device__ cuda::CutShared* cut() { return nullptr; }
};
template <>
struct Shared<true> {
  cuda::RowShared row;
  cuda::ResidualShared residual;
  cuda::CutShared cuts;
  __device__ cuda::CutShared* cut() { return &cuts; }
};

/// A group of blocks a sequence.
template <bool kResidual, bool kCuts>
__global__ void __launch_bounds__(cuda::kRowThreads, cuda::kBlocksASm)
    walk_trees(const VerifyTreesParams p, const NodeRules rules, const cuda::RowSplit split) {
  extern __shared__ float4 dynamic[];
  __shared__ Shared<kCuts> shared;
  cuda::start_after_previous();
  const cuda::RowLink link(split, shared);
  const NodeParts parts(link.data(reinterpret_cast<float*>(dynamic)), cuda::kRowThreads * split.run,
                        kResidual);
  RowGroup row(split, link, parts.target, shared.row);
  Walk<kResidual, kCuts>(p, rules, link.row(), row, parts, shared.residual, shared.cut()).run();
  row.sync();  // others may still read this block's shared memory
}

}  // namespace

void verify_trees_cuda(const VerifyTreesParams& t, Stream stream) {
  if (t.n_seqs == 0) return;
  if (goes_by_sequences(t.accept_by) && t.target.temperature > 0.0f)
    return traverse_trees(t, stream);
  if (is_lossy(t.accept_by)) find_floor_paths(t, stream);
  const bool by_residual = weighs_draws(t.accept_by) && t.target.temperature > 0.0f;
  const NodeRules rules(t, by_residual);
  const int words = by_residual ? 3 : 1;
  const cuda::RowSplit split = cuda::split_row(cuda::gpu(), t.vocab, t.n_seqs, words);
  const auto kernel = by_residual  ? rules.cuts ? walk_trees<true, true> : walk_trees<true, false>
                       : rules.cuts ? walk_trees<false, true>
                                   : walk_trees<false, false>;
  cuda::launch_nodes(kernel, t.n_seqs, split, words, t, rules, stream);
}

}  // namespace tandem::TANDEM_GPU_BODY
