#include <math.h>

#include "kernels/sample/select.h"
#include "kernels/sample/weights.h"

namespace tandem {
namespace {

/// The row with its seen tokens penalised: a copy, or the row itself if nothing changes.
inline const float* penalize(const SampleParams& p, int row, const float* x, float* copy) {
  if (p.repetition_penalty == 1.0f || p.seen == nullptr) return x;
  memcpy(copy, x, static_cast<size_t>(p.vocab) * sizeof(float));
  for (int i = p.seen_begin[row]; i < p.seen_begin[row + 1]; ++i) {
    const float logit = x[p.seen[i]];  // of the original: a repeated id is penalised once
    copy[p.seen[i]] = logit < 0 ? logit * p.repetition_penalty : logit / p.repetition_penalty;
  }
  return copy;
}

/// Drops what top-p and min-p leave out by setting its weight to 0; returns the sum of the rest.
inline uint64_t truncate(const SampleParams& p, const float* x, int n, uint64_t total,
                         const Workspace& w) {
  if (p.top_p < 1.0) {
    const auto wanted = static_cast<uint64_t>(ceil(p.top_p * static_cast<double>(total)));
    const auto key = [&](int i) { return order_key(x[i]); };
    const Cut cut = find_cut(
        n, wanted > 0 ? wanted : 1, key, [&](int i) { return w.weight[i]; }, w.histogram);
    total = 0;
    for (int i = 0; i < n; ++i) {
      w.weight[i] = cut.keeps(key(i), i) ? w.weight[i] : 0;
      total += w.weight[i];
    }
  }
  if (p.min_p > 0.0) {
    const auto least = static_cast<uint64_t>(ceil((p.min_p < 1.0 ? p.min_p : 1.0) * 0x1p40));
    total = 0;
    for (int i = 0; i < n; ++i) {
      w.weight[i] = w.weight[i] >= least ? w.weight[i] : 0;
      total += w.weight[i];
    }
  }
  return total;
}

/// First index whose cumulative weight exceeds uniform * total, in exact arithmetic.
inline int draw(const uint64_t* weight, int n, uint64_t total, double uniform) {
  const auto u53 = static_cast<uint64_t>(uniform * 0x1p53);
  const auto wanted = static_cast<uint64_t>((static_cast<unsigned __int128>(u53) * total) >> 53);
  uint64_t below = 0;
  int i = 0;
  for (; i + kScanBlock <= n; i += kScanBlock) {
    uint64_t block = 0;
    for (int j = 0; j < kScanBlock; ++j) block += weight[i + j];
    if (below + block > wanted) break;
    below += block;
  }
  while ((below += weight[i]) <= wanted) ++i;
  return i;
}

int draw_row(const SampleParams& p, int row, const Workspace& w) {
  const float* x = penalize(p, row, p.logits + static_cast<int64_t>(row) * p.vocab, w.penalized);
  const Extremes extremes = scan(x, p.vocab, w.block_max);
  if (!extremes.is_valid) return kInvalidToken;
  const int best = first_with_key(x, extremes.max, w.block_max);
  if (p.temperature == 0.0f) return best;
  const float max = x[best];
  int n = p.vocab;
  const bool is_compact = p.top_k > 0 && p.top_k < n;
  if (is_compact) {
    n = keep_top(x, n, p.top_k, w);
    x = w.top;
  }
  // The order of logits is the order of tempered logits, so top-k may come first and stay exact.
  const uint64_t total = fill_weights(w.weight, x, n, max, p.temperature);
  const int i = draw(w.weight, n, truncate(p, x, n, total, w), p.uniform[row]);
  return is_compact ? w.id[i] : i;
}

}  // namespace

void TANDEM_ISA_FN(sample)(const SampleParams& p, Range rows) {
  const Workspace w = lay_out(p.workspace, p.vocab);
  for (int r = rows.begin; r < rows.end; ++r) p.tokens[r] = draw_row(p, r, w);
}

}  // namespace tandem
