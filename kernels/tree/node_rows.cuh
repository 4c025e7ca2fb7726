#pragma once
// The rows of target and draft at a node, in the memory of a group of blocks, for the kernels of
// verification.
#include "kernels/sample/row_launch.cuh"
#include "kernels/sample/row_rule.cuh"
#include "kernels/sample/row_stats.cuh"
#include "kernels/tree/residual.cuh"
#include "kernels/tree/verify_trees.h"

namespace tandem::cuda::inline TANDEM_GPU_BODY {

__host__ __device__ inline bool penalizes(const KeepRule& rule) {
  return rule.repetition_penalty != 1.0f;
}

/// What verification does with the rows of a launch.
struct NodeRules {
  RowRule target, draft;
  bool cuts, marks;

  /// The draft counts where children are tried by residual.
  NodeRules(const VerifyTreesParams& p, bool by_residual)
      : target(p.target),
        draft(p.draft),
        cuts(has_cuts(p.target, p.vocab) || (by_residual && has_cuts(p.draft, p.vocab))),
        marks(penalizes(p.target) || (by_residual && penalizes(p.draft))) {}
};

/// Memory of a block: parts of rows, and marks of tokens to penalise.
struct NodeParts {
  // Of a token by residual, low word and proposal take the logits' places.
  float *target, *draft, *high;
  uint32_t* marks;

  __device__ NodeParts(float* base, int part_size, bool by_residual)
      : target(base),
        draft(base + part_size),
        high(base + 2 * part_size),
        marks(reinterpret_cast<uint32_t*>(base + (by_residual ? 3 : 1) * part_size)) {}
};

/// All threads of all blocks take every step together.
template <bool kResidual, bool kCuts>
class NodeRows {
 public:
  __device__ NodeRows(const VerifyTreesParams& p, const NodeRules& rules, RowGroup& row,
                      const NodeParts& parts, ResidualShared& residual, CutShared* cut)
      : p_(p),
        rules_(rules),
        row_(row),
        parts_(parts),
        cut_(cut),
        residual_(row, residual, parts.target, parts.high, parts.draft) {}

  /// Reads the rows of a node of sequence b, the draft's only if it has drawn children, and
  /// penalises tokens of the sequence and path_token(i) for i < n_path. False if one has no
  /// meaning.
  template <class PathToken>
  __device__ bool read(int b, int node, bool has_drawn, int n_path, const PathToken& path_token) {
    const int at = p_.node_begin[b] + node;
    has_draft_ = kResidual && has_drawn;
    Best best[2] = {
        row_.read(p_.target_logits + int64_t{p_.target_row[at]} * p_.vocab, parts_.target), {0, 0}};
    if (has_draft_)
      best[1] = row_.read(p_.draft_logits + int64_t{p_.draft_row[at]} * p_.vocab, parts_.draft);
    row_.bests(best);
    if (p_.logprobs != nullptr) lse_ = log_sum_exp(row_, best[0]);
    penalize_row(parts_.target, rules_.target.keep, b, n_path, path_token, best[0]);
    if (has_draft_) penalize_row(parts_.draft, rules_.draft.keep, b, n_path, path_token, best[1]);
    best_ = best[0].id;
    max_ = best[0].logit();
    draft_max_ = best[1].logit();
    return best[0].is_valid() && (!has_draft_ || best[1].is_valid());
  }

  /// Of the row as it is; known if logprobs are wanted.
  __device__ float lse() const { return lse_; }
  /// The best token after penalties.
  __device__ int32_t best() const { return best_; }
  __device__ RowResidual& residual() { return residual_; }

  /// Puts the distributions of target and draft in the places of their logits, for residual().
  /// child    the first
  __device__ void weigh(int32_t child) {
    uint64_t sum[3] = {0, 0, 0};  // target, kept and rest of the draft
    // draft(i) adds to the latter.
    const auto fill = [&](const auto& target, const auto& draft) {
      row_.each([&](int i) {
        const TokenWeights w{target(i), has_draft_ ? draft(i) : 0.0f};
        residual_.set(i, w);
        if (row_.first() + i == child) residual_.publish(w);
        sum[0] += w.residual;
      });
    };
    if constexpr (kCuts) {
      if (has_draft_) {
        row_.use(parts_.draft);
        const CutWeights draft(rules_.draft, p_.vocab, row_, *cut_, draft_max_);
        row_.each([&](int i) {  // while the cut knows the logits
          parts_.draft[i] = proposal_weight(draft(i), draft_weight(i));
        });
        row_.use(parts_.target);
      }
      const CutWeights target(rules_.target, p_.vocab, row_, *cut_, max_);
      fill(target, [&](int i) {
        const float w = parts_.draft[i];
        sum[1] += static_cast<uint64_t>(fmaxf(w, 0.0f));
        sum[2] += static_cast<uint64_t>(fmaxf(-w, 0.0f));
        return w;
      });
    } else {
      fill([&](int i) { return target_weight(i); },
           [&](int i) {
             const uint64_t w = draft_weight(i);
             sum[1] += w;
             sum[2] += w == 0;
             return proposal_weight(w, w);
           });
    }
    row_.totals(sum);
    residual_.start(sum[0], sum[1], sum[2]);
  }

  /// Draws from the target's distribution; the token in one warp, else -1.
  __device__ int32_t draw(double uniform) {
    const auto from = [&](const auto& weight) {
      uint64_t mine = 0;
      row_.each<4>([&](int i) { mine += weight(i); });
      return row_.find_first(mine, weight,
                             [&](uint64_t total) { return weight_before(uniform, total); });
    };
    if constexpr (kCuts)
      return from(CutWeights(rules_.target, p_.vocab, row_, *cut_, max_));
    else
      return from([&](int i) { return target_weight(i); });
  }

 private:
  __device__ uint64_t target_weight(int i) const {
    return weight_of(rules_.target.temper(parts_.target[i] - max_));
  }
  __device__ uint64_t draft_weight(int i) const {
    return weight_of(rules_.draft.temper(parts_.draft[i] - draft_max_));
  }

  template <class PathToken>
  __device__ void penalize_row(float* logits, const KeepRule& rule, int b, int n_path,
                               const PathToken& path_token, Best& best) {
    if (!penalizes(rule)) return;
    row_.use(logits);
    const int begin = p_.seen != nullptr ? p_.seen_begin[b] : 0;
    const int n_seen = p_.seen != nullptr ? p_.seen_begin[b + 1] - begin : 0;
    penalize(row_, rule.repetition_penalty, parts_.marks, n_seen + n_path,
             [&](int i) { return i < n_seen ? p_.seen[begin + i] : path_token(i - n_seen); });
    Best mine{0, 0};
    row_.each([&](int i) { mine.consider(row_.logit(i), row_.first() + i); });
    best = row_.best(mine);
    row_.use(parts_.target);
  }

  const VerifyTreesParams& p_;
  const NodeRules& rules_;
  RowGroup& row_;
  NodeParts parts_;
  CutShared* cut_;
  RowResidual residual_;
  float lse_ = 0, max_ = 0, draft_max_ = 0;
  int32_t best_ = 0;
  bool has_draft_ = false;
};

/// Puts a kernel of verification on the stream: of groups of blocks with room for `words` floats a
/// token and marks.
template <class Kernel, class... Args>
void launch_nodes(Kernel kernel, int n_groups, const RowSplit& split, int words,
                  const VerifyTreesParams& p, const NodeRules& rules, Stream stream,
                  const Args&... args) {
  const size_t bytes =
      split.part_bytes() * static_cast<size_t>(words) + (rules.marks ? mark_bytes(split) : 0);
  launch_rows(kernel, n_groups, split, bytes, p.workspace, stream, p, rules, args...);
}

}  // namespace tandem::cuda::inline TANDEM_GPU_BODY
