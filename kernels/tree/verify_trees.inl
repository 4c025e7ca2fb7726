#include "kernels/tree/verify_trees.h"

#include "kernels/tree/node_distributions.h"

namespace tandem {
namespace {

/// The result of a node: a child to go on from, or else the last token.
struct Verdict {
  int child;  // index among the children; their number if none
  int token;  // of that child, or drawn
};

inline int index_of(int token, const int32_t* children, int n) {
  int i = 0;
  while (i < n && children[i] != token) ++i;
  return i;
}

class Walk {
 public:
  Walk(const VerifyTreesParams& p, int b, const VerifyWorkspace& w)
      : p_(p),
        b_(b),
        w_(w),
        names_(names_of(p.numbers, b)),
        begin_(p.node_begin[b]),
        tokens_(p.tokens + begin_),
        path_(p.path + begin_) {
    p.n_rounded[b] = 0;
  }

  void run() {
    for (int node = 0;;) {
      const float* row = row_of(p_.target_logits, p_.target_row, node);
      const int n_children = p_.n_children[begin_ + node];
      const Verdict v = decide(node, row, n_children);
      if (p_.logprobs != nullptr && v.token != kInvalidToken)
        p_.logprobs[begin_ + n_] = row[v.token] - log_sum_exp(row);
      if (v.child == n_children || v.token == kInvalidToken) {
        p_.bonus[b_] = v.token;
        break;
      }
      path_[n_++] = node = p_.first_child[begin_ + node] + v.child;
    }
    p_.n_accepted[b_] = n_;
  }

 private:
  const float* row_of(const float* logits, const int32_t* row, int node) const {
    return logits + static_cast<int64_t>(row[begin_ + node]) * p_.vocab;
  }

  Verdict decide(int node, const float* row, int n_children) {
    const int seen_begin = p_.seen != nullptr ? p_.seen_begin[b_] : 0;
    const int n_seen = p_.seen != nullptr ? p_.seen_begin[b_ + 1] - seen_begin : 0;
    const Seen seen{p_.seen + seen_begin, n_seen, tokens_, path_, n_};
    const int first = n_children > 0 ? p_.first_child[begin_ + node] : 0;
    const int32_t* children = tokens_ + first;
    const bool by_residual =
        p_.accept_by == AcceptBy::residual && n_children > 0 && p_.target.temperature > 0.0f;
    Proposal proposal{nullptr, 0, 0};
    if (by_residual) {
      proposal =
          proposal_of(p_.draft, row_of(p_.draft_logits, p_.draft_row, node), p_.vocab, seen, w_);
      if (proposal.left == 0) return {0, kInvalidToken};
    }
    const Candidates kept = keep_penalized(p_.target, row, p_.vocab, seen, w_.select);
    if (kept.n == 0) return {0, kInvalidToken};
    const bool is_rest = p_.accept_by == AcceptBy::residual && n_children > 0;
    const double uniform = uniform_after(names_, node, n_, is_rest);
    if (!by_residual) {
      const int token = kept.token(draw(w_.select.weight, kept.n, kept.total, uniform));
      return {index_of(token, children, n_children), token};
    }
    Residual left = residual_of(kept, w_);
    const int child = try_children(
        left, proposal, children, n_children, [&](int i) { return coin_of(names_, first + i); },
        &p_.n_rounded[b_]);
    if (child < n_children) return {child, children[child]};
    return {child, kept.token(draw(left.weight, left.n, left.total, uniform))};
  }

  /// As logit_stats gives it.
  float log_sum_exp(const float* row) const {
    const Extremes extremes = scan(row, p_.vocab, w_.select.block_max);
    const float max = row[first_with_key(row, extremes.max, w_.select.block_max)];
    const auto sum = static_cast<double>(sum_weights(row, p_.vocab, max));
    return static_cast<float>(max + log(sum * 0x1p-40));
  }

  const VerifyTreesParams& p_;
  const int b_;
  const VerifyWorkspace& w_;
  const RoundNames names_;
  const int begin_;
  const int32_t* tokens_;
  int32_t* path_;
  int n_ = 0;  // accepted
};

}  // namespace

void TANDEM_ISA_FN(verify_trees)(const VerifyTreesParams& p, Range seqs) {
  const VerifyWorkspace w = lay_out_verify(p.workspace, p.vocab);
  for (int b = seqs.begin; b < seqs.end; ++b) Walk(p, b, w).run();
}

}  // namespace tandem
