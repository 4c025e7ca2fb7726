#include "kernels/tree/node_distributions.h"
#include "kernels/tree/verify_trees.h"

namespace tandem {
namespace {

inline void fill(double* chances, int n, double value) {
  for (int i = 0; i < n; ++i) chances[i] = value;
}

/// The target's probabilities of the children; of equal ones the first counts.
void match_chances(double* chances, const Candidates& kept, const VerifyWorkspace& w,
                   const int32_t* children, int n) {
  const Residual distribution = residual_of(kept, w);
  for (int i = 0; i < n; ++i) {
    chances[i] = static_cast<double>(weight_at(distribution, children[i])) /
                 static_cast<double>(distribution.total);
    for (int j = 0; j < i; ++j)
      if (children[j] == children[i]) chances[i] = 0;
  }
}

void chances_of_row(const AcceptChancesParams& p, int r, const VerifyWorkspace& w) {
  const int first = p.child_begin[r], n = p.child_begin[r + 1] - first;
  const int32_t* children = p.children + first;
  double* chances = p.chances + first;
  const int seen_begin = p.seen != nullptr ? p.seen_begin[r] : 0;
  const int n_seen = p.seen != nullptr ? p.seen_begin[r + 1] - seen_begin : 0;
  const Seen seen{p.seen + seen_begin, n_seen, nullptr, nullptr, 0};
  const int64_t row = static_cast<int64_t>(r) * p.vocab;
  const bool by_residual = p.accept_by != AcceptBy::match && p.target.temperature > 0.0f;
  Proposal proposal{nullptr, 0, 0};
  if (by_residual) {
    proposal = proposal_of(p.draft, p.draft_logits + row, p.vocab, seen, n, nullptr, w);
    if (proposal.left == 0) return fill(chances, n, NAN);
  }
  const Candidates kept = keep_penalized(p.target, p.target_logits + row, p.vocab, seen, w.select);
  if (kept.n == 0) return fill(chances, n, NAN);
  if (!by_residual) return match_chances(chances, kept, w, children, n);
  Residual left = residual_of(kept, w);
  residual_chances(chances, left, proposal, children, n);
}

}  // namespace

void TANDEM_ISA_FN(accept_chances)(const AcceptChancesParams& p, Range rows) {
  const VerifyWorkspace w = lay_out_verify(p.workspace, p.vocab, 0);
  for (int r = rows.begin; r < rows.end; ++r) chances_of_row(p, r, w);
}

}  // namespace tandem
