#include "kernels/sample/kept.h"

namespace tandem {
namespace {

/// The row with its seen tokens penalised: a copy, or the row itself if nothing changes.
inline const float* penalized_row(const SampleParams& p, int row, const Workspace& w) {
  const float* x = p.logits + static_cast<int64_t>(row) * p.vocab;
  if (p.rule.repetition_penalty == 1.0f || p.seen == nullptr) return x;
  const int begin = p.seen_begin[row], n = p.seen_begin[row + 1] - begin;
  memcpy(w.penalized, x, static_cast<size_t>(p.vocab) * sizeof(float));
  penalize(w.penalized, x, p.seen + begin, n, p.rule.repetition_penalty);
  return w.penalized;
}

int draw_row(const SampleParams& p, int row, const Workspace& w) {
  const Candidates c = keep(p.rule, penalized_row(p, row, w), p.vocab, w);
  if (c.n == 0) return kInvalidToken;
  if (p.rule.temperature == 0.0f) return c.token(0);
  return c.token(draw(w.weight, c.n, c.total, p.uniform[row]));
}

}  // namespace

void TANDEM_ISA_FN(sample)(const SampleParams& p, Range rows) {
  const Workspace w = lay_out(p.workspace, p.vocab);
  for (int r = rows.begin; r < rows.end; ++r) p.tokens[r] = draw_row(p, r, w);
}

}  // namespace tandem
