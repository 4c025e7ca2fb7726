#include "kernels/sample/row_launch.cuh"
#include "kernels/sample/row_rule.cuh"
#include "kernels/sample/row_stats.cuh"
#include "kernels/sample/sample_cuda.h"
#include "kernels/tree/residual.cuh"
#include "kernels/tree/verify_trees.h"

namespace tandem::TANDEM_GPU_BODY {
namespace {

using cuda::Best;
using cuda::RowGroup;
using cuda::RowRule;

struct Rules {
  RowRule target, draft;
};

__host__ __device__ bool penalizes(const KeepRule& rule) { return rule.repetition_penalty != 1.0f; }

/// Shared memory of a block: parts of rows, and marks of tokens to penalise.
struct Parts {
  float *target, *draft,
      *high;  // of a token by residual: low word and proposal take the logits' places
  uint32_t* marks;

  __device__ Parts(float* base, int part_size, bool by_residual)
      : target(base),
        draft(base + part_size),
        high(base + 2 * part_size),
        marks(reinterpret_cast<uint32_t*>(base + (by_residual ? 3 : 1) * part_size)) {}
};

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
  __device__ Walk(const VerifyTreesParams& p, const Rules& rules, int b, RowGroup& row,
                  const Parts& parts, cuda::ResidualShared& residual, cuda::CutShared* cut)
      : p_(p),
        rules_(rules),
        names_(names_of(p.numbers, b)),
        b_(b),
        begin_(p_.node_begin[b]),
        row_(row),
        parts_(parts),
        cut_(cut),
        residual_(row, residual, parts.target, parts.high, parts.draft) {}

  __device__ void run() {
    const bool writes = row_.rank() == 0 && threadIdx.x == 0;
    for (int node = 0;;) {
      const int n_children = p_.n_children[begin_ + node];
      const int first = n_children > 0 ? p_.first_child[begin_ + node] : 0;
      const float* logits = row_of(p_.target_logits, p_.target_row, node);
      const Verdict v = decide(node, logits, first, n_children);
      if (writes && p_.logprobs != nullptr && v.token != kInvalidToken)
        p_.logprobs[begin_ + n_] = logits[v.token] - lse_;
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
  __device__ const float* row_of(const float* logits, const int32_t* row, int node) const {
    return logits + int64_t{row[begin_ + node]} * p_.vocab;
  }

  __device__ Verdict decide(int node, const float* logits, int first, int n_children) {
    const bool by_residual = kResidual && n_children > 0;
    Best best[2] = {row_.read(logits, parts_.target), {0, 0}};
    if (by_residual) best[1] = row_.read(row_of(p_.draft_logits, p_.draft_row, node), parts_.draft);
    row_.bests(best);
    if (p_.logprobs != nullptr) lse_ = cuda::log_sum_exp(row_, best[0]);
    penalize_row(parts_.target, rules_.target.keep, best[0]);
    if (by_residual) penalize_row(parts_.draft, rules_.draft.keep, best[1]);
    if (!best[0].is_valid() || (by_residual && !best[1].is_valid())) return {0, kInvalidToken};
    const int32_t* children = p_.tokens + begin_ + first;
    if (by_residual) return by_rejections(node, first, children, n_children, best);
    int32_t token = best[0].id;
    if (p_.target.temperature > 0.0f)
      token = shared_by_all(
          draw(best[0].logit(), uniform_after(names_, node, n_, is_rest(n_children))));
    return {index_of(token, children, n_children), token};
  }

  __device__ bool is_rest(int n_children) const {
    return p_.accept_by != AcceptBy::match && n_children > 0;
  }

  __device__ Verdict by_rejections(int node, int first, const int32_t* children, int n_children,
                                   const Best (&best)[2]) {
    weigh(children[0], best);
    const int child = residual_.try_children(
        children, n_children, [&](int i) { return coin_of(names_, first + i); }, n_rounded_);
    if (child < n_children) return {child, children[child]};
    return {child, shared_by_all(residual_.draw(uniform_after(names_, node, n_, true)))};
  }

  /// Puts the distributions of target and draft in the places of their logits.
  __device__ void weigh(int32_t child, const Best (&best)[2]) {
    uint64_t sum[2] = {0, 0};
    const auto fill = [&](const auto& target, const auto& draft) {
      row_.each([&](int i) {
        const uint64_t q = draft(i);
        const cuda::TokenWeights w{target(i), static_cast<float>(static_cast<int64_t>(q))};
        residual_.set(i, w);
        if (row_.first() + i == child) residual_.publish(w);
        sum[0] += w.residual;
        sum[1] += q;
      });
    };
    const float max = best[0].logit(), draft_max = best[1].logit();
    if constexpr (kCuts) {
      row_.use(parts_.draft);
      const cuda::CutWeights draft(rules_.draft, p_.vocab, row_, *cut_, draft_max);
      row_.each([&](int i) {  // while the cut knows the logits
        parts_.draft[i] = static_cast<float>(static_cast<int64_t>(draft(i)));
      });
      row_.use(parts_.target);
      const cuda::CutWeights target(rules_.target, p_.vocab, row_, *cut_, max);
      fill(target, [&](int i) { return static_cast<uint64_t>(parts_.draft[i]); });
    } else {
      fill([&](int i) { return weight_of(rules_.target.temper(parts_.target[i] - max)); },
           [&](int i) { return weight_of(rules_.draft.temper(parts_.draft[i] - draft_max)); });
    }
    row_.totals(sum);
    residual_.start(sum[0], sum[1], p_.vocab);
  }

  /// Draws from the target's distribution; the token in one warp, else -1.
  __device__ int32_t draw(float max, double uniform) {
    const auto from = [&](const auto& weight) {
      uint64_t mine = 0;
      row_.each<4>([&](int i) { mine += weight(i); });
      return row_.find_first(mine, weight,
                             [&](uint64_t total) { return weight_before(uniform, total); });
    };
    if constexpr (kCuts)
      return from(cuda::CutWeights(rules_.target, p_.vocab, row_, *cut_, max));
    else
      return from([&](int i) { return weight_of(rules_.target.temper(row_.logit(i) - max)); });
  }

  /// Penalises the tokens of the sequence and of the node's path; the best token after it.
  __device__ void penalize_row(float* logits, const KeepRule& rule, Best& best) {
    if (!penalizes(rule)) return;
    row_.use(logits);
    const int begin = p_.seen != nullptr ? p_.seen_begin[b_] : 0;
    const int n_seen = p_.seen != nullptr ? p_.seen_begin[b_ + 1] - begin : 0;
    cuda::penalize(row_, rule.repetition_penalty, parts_.marks, n_seen + n_, [&](int i) {
      return i < n_seen ? p_.seen[begin + i] : p_.tokens[begin_ + p_.path[begin_ + i - n_seen]];
    });
    Best mine{0, 0};
    row_.each([&](int i) { mine.consider(row_.logit(i), row_.first() + i); });
    best = row_.best(mine);
    row_.use(parts_.target);
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
  const Rules& rules_;
  RoundNames names_;
  int b_, begin_;
  RowGroup& row_;
  Parts parts_;
  cuda::CutShared* cut_;
  cuda::RowResidual residual_;
  float lse_ = 0;
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
    walk_trees(const VerifyTreesParams p, const Rules rules, const cuda::RowSplit split) {
  extern __shared__ float4 dynamic[];
  __shared__ Shared<kCuts> shared;
  cuda::start_after_previous();
  const cuda::RowLink link(split, shared);
  const Parts parts(link.data(reinterpret_cast<float*>(dynamic)), cuda::kRowThreads * split.run,
                    kResidual);
  RowGroup row(split, link, parts.target, shared.row);
  Walk<kResidual, kCuts>(p, rules, link.row(), row, parts, shared.residual, shared.cut()).run();
  row.sync();  // others may still read this block's shared memory
}

}  // namespace

void verify_trees_cuda(const VerifyTreesParams& t, Stream stream) {
  if (t.n_seqs == 0) return;
  const bool by_residual = t.accept_by != AcceptBy::match && t.target.temperature > 0.0f;
  const bool cuts =
      cuda::has_cuts(t.target, t.vocab) || (by_residual && cuda::has_cuts(t.draft, t.vocab));
  const bool marks = penalizes(t.target) || (by_residual && penalizes(t.draft));
  const int words = by_residual ? 3 : 1;
  const cuda::RowSplit split = cuda::split_row(cuda::gpu(), t.vocab, t.n_seqs, words);
  const size_t bytes =
      split.part_bytes() * static_cast<size_t>(words) + (marks ? cuda::mark_bytes(split) : 0);
  const auto kernel = by_residual ? cuts ? walk_trees<true, true> : walk_trees<true, false>
                      : cuts ? walk_trees<false, true>
                                  : walk_trees<false, false>;
  cuda::launch_rows(kernel, t.n_seqs, split, bytes, t.workspace, stream, t,
                    Rules{RowRule(t.target), RowRule(t.draft)});
}

}  // namespace tandem::TANDEM_GPU_BODY
