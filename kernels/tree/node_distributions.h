#pragma once
// The distributions of target and draft at a node, from rows of logits, for verify_trees and
// accept_chances.
#include "kernels/sample/kept.h"
#include "kernels/tree/node_step.h"
#include "kernels/tree/verify_workspace.h"

namespace tandem {
namespace {

/// Tokens that a rule penalises at a node: those of the sequence and those of the node's path.
struct Seen {
  const int32_t* tokens;
  int n;
  const int32_t* node_tokens;  // of the tree
  const int32_t* path;         // its nodes
  int n_path;
};

inline Candidates keep_penalized(const KeepRule& rule, const float* row, int vocab,
                                 const Seen& seen, const Workspace& w) {
  if (rule.repetition_penalty == 1.0f) return keep(rule, row, vocab, w);
  memcpy(w.penalized, row, static_cast<size_t>(vocab) * sizeof(float));
  penalize(w.penalized, row, seen.tokens, seen.n, rule.repetition_penalty);
  for (int i = 0; i < seen.n_path; ++i)
    penalize(w.penalized, row, seen.node_tokens + seen.path[i], 1, rule.repetition_penalty);
  return keep(rule, w.penalized, vocab, w);
}

/// The weights of a row by a rule that keeps all, none of them written down.
inline RowWeights weigh(const KeepRule& rule, const float* x, int vocab) {
  const float max = row_max(x, vocab);
  if (max != max) return {};
  return {x, max, rule.temperature, sum_weights(x, vocab, max, rule.temperature)};
}

/// The draft's distribution, for a node with n_drawn children; without one for a row without
/// meaning. Uses w.select.
/// known    the row's sum, if that is known; null: not
inline Proposal proposal_of(const KeepRule& rule, const float* row, int vocab, const Seen& seen,
                            int n_drawn, const RowSum* known, const VerifyWorkspace& w) {
  if (n_drawn == 1 && keeps_all(rule, vocab)) {
    const bool is_known = known != nullptr && known->total > 0;
    const RowWeights whole = is_known ? RowWeights{row, known->max, rule.temperature, known->total}
                                      : weigh(rule, row, vocab);
    return {nullptr, whole.total, 0, whole};
  }
  const Candidates c = keep_penalized(rule, row, vocab, seen, w.select);
  if (c.n == 0) return {w.proposal, 0, 0};
  if (c.id != nullptr) memset(w.proposal, 0, static_cast<size_t>(vocab) * sizeof(double));
  int n_kept = 0;
  for (int i = 0; i < c.n; ++i) {
    w.proposal[c.token(i)] = static_cast<double>(static_cast<int64_t>(w.select.weight[i]));
    n_kept += w.select.weight[i] > 0;
  }
  if (n_kept >= n_drawn) return {w.proposal, c.total, 0};
  // The rest by what their weights would be, or 1.
  const float* x = rule.repetition_penalty == 1.0f ? row : w.select.penalized;
  fill_weights(w.select.weight, x, vocab, c.max, rule.temperature);
  uint64_t rest = 0;
  for (int i = 0; i < vocab; ++i) {
    if (w.proposal[i] > 0) continue;
    const uint64_t weight = w.select.weight[i] > 0 ? w.select.weight[i] : 1;
    w.proposal[i] = -static_cast<double>(static_cast<int64_t>(weight));
    rest += weight;
  }
  return {w.proposal, c.total, rest};
}

inline Residual residual_of(const Candidates& c, const VerifyWorkspace& w) {
  return {w.select.weight, w.next, c.id, c.n, c.total, c.total};
}

/// The same of a node that is reached with less than certainty.
inline Residual residual_of(const Candidates& c, const Reach& reach, const VerifyWorkspace& w) {
  Residual r = residual_of(c, w);
  const double value = reach.value();
  if (value == 1.0 || r.total == 0) return r;
  const int shift = r.shift();
  r.unit <<= shift;
  r.total = 0;
  for (int i = 0; i < r.n; ++i) {
    r.weight[i] = reached_weight(r.weight[i], shift, value);
    r.total += r.weight[i];
  }
  return r;
}

}  // namespace
}  // namespace tandem
