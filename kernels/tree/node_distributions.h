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

/// The draft's distribution; `left` is 0 for a row without meaning. Uses w.select.
inline Proposal proposal_of(const KeepRule& rule, const float* row, int vocab, const Seen& seen,
                            const VerifyWorkspace& w) {
  const Candidates c = keep_penalized(rule, row, vocab, seen, w.select);
  if (c.id != nullptr) memset(w.proposal, 0, static_cast<size_t>(vocab) * sizeof(double));
  for (int i = 0; i < c.n; ++i)
    w.proposal[c.token(i)] = static_cast<double>(static_cast<int64_t>(w.select.weight[i]));
  return {w.proposal, c.total, vocab};
}

inline Residual residual_of(const Candidates& c, const VerifyWorkspace& w) {
  return {w.select.weight, w.next, c.id, c.n, c.total};
}

}  // namespace
}  // namespace tandem
