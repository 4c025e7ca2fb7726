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

/// Tokens still in play, in ascending order of id, with their weights in w.weight.
struct Candidates {
  const float* logit;
  const int32_t* id;  // null: id[i] = i
  int n;
  uint64_t total;  // of the weights
};

/// Sets the weights that `keeps` refuses to 0.
template <class Keeps>
inline void drop(Candidates& c, uint64_t* weight, Keeps keeps) {
  c.total = 0;
  for (int i = 0; i < c.n; ++i) {
    weight[i] = keeps(i) ? weight[i] : 0;
    c.total += weight[i];
  }
}

/// Narrows a whole row to its kLikely largest if these hold `wanted` already, which they nearly
/// always do; the exact cut is then sought among few.
inline void narrow(Candidates& c, uint64_t wanted, const Workspace& w) {
  constexpr int kLikely = 256;
  if (c.id != nullptr || c.n <= kLikely) return;
  const int n = keep_top(c.logit, c.n, kLikely, w);
  uint64_t sum = 0;
  for (int i = 0; i < n; ++i) sum += w.weight[w.id[i]];
  if (sum < wanted) return;
  for (int i = 0; i < n; ++i) w.weight[i] = w.weight[w.id[i]];  // ids ascend: id[i] >= i
  c = {w.top, w.id, n, sum};
}

/// Drops what top-p and min-p leave out.
inline void truncate(const SampleParams& p, Candidates& c, const Workspace& w) {
  if (p.top_p < 1.0) {
    const double share = ceil(p.top_p * static_cast<double>(c.total));
    const uint64_t wanted = share > 1.0 ? static_cast<uint64_t>(share) : 1;
    narrow(c, wanted, w);
    const auto key = [&](int i) { return order_key(c.logit[i]); };
    const Cut cut = find_cut(
        c.n, wanted, key, [&](int i) { return w.weight[i]; }, w.histogram);
    drop(c, w.weight, [&](int i) { return cut.keeps(key(i), i); });
  }
  if (p.min_p > 0.0) {
    const auto least = static_cast<uint64_t>(ceil((p.min_p < 1.0 ? p.min_p : 1.0) * 0x1p40));
    drop(c, w.weight, [&](int i) { return w.weight[i] >= least; });
  }
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
  Candidates c{x, nullptr, p.vocab, 0};
  if (p.top_k > 0 && p.top_k < p.vocab) c = {w.top, w.id, keep_top(x, p.vocab, p.top_k, w), 0};
  // The order of logits is the order of tempered logits, so top-k may come first and stay exact.
  c.total = fill_weights(w.weight, c.logit, c.n, x[best], p.temperature);
  truncate(p, c, w);
  const int i = draw(w.weight, c.n, c.total, p.uniform[row]);
  return c.id != nullptr ? c.id[i] : i;
}

}  // namespace

void TANDEM_ISA_FN(sample)(const SampleParams& p, Range rows) {
  const Workspace w = lay_out(p.workspace, p.vocab);
  for (int r = rows.begin; r < rows.end; ++r) p.tokens[r] = draw_row(p, r, w);
}

}  // namespace tandem
