#pragma once
// Which tokens of a row may be drawn, with exact integer weights, for the bodies of sampling and of
// verification.
#include <math.h>

#include "kernels/sample/select.h"
#include "kernels/sample/weights.h"

namespace tandem {
namespace {

/// Copies the row with seen tokens penalised; `x` is the row as it was, so that a repeated id is
/// penalised once.
inline void penalize(float* copy, const float* x, const int32_t* seen, int n, float penalty) {
  for (int i = 0; i < n; ++i) {
    const float logit = x[seen[i]];
    copy[seen[i]] = logit < 0 ? logit * penalty : logit / penalty;
  }
}

/// Tokens still in play, in ascending order of id, with their weights in w.weight.
struct Candidates {
  const float* logit;
  const int32_t* id;  // null: id[i] = i
  int n;              // 0: the row has no meaning
  uint64_t total;     // of the weights
  float max;          // the largest logit

  int token(int i) const { return id != nullptr ? id[i] : i; }
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

/// Leaves out tokens too light for the exact cut to keep, which is then sought among few: the last
/// token kept and all after it weigh more than total - wanted, so one of them is above the mean of
/// that, and the kept one is as heavy. Half of the mean allows for weights that follow logits to
/// 2^-22 only.
inline void narrow(Candidates& c, uint64_t wanted, const Workspace& w) {
  if (c.n <= kFewKeys) return;
  const uint64_t least = (c.total - wanted) / static_cast<uint64_t>(c.n) / 2;
  int n = 0;
  for (int i = 0; i < c.n; ++i) {  // n <= i
    const uint64_t weight = w.weight[i];
    w.top[n] = c.logit[i];
    w.id[n] = c.token(i);
    w.weight[n] = weight;
    n += weight >= least;
  }
  c = {w.top, w.id, n, c.total, c.max};
}

/// Drops what top-p and min-p leave out.
inline void truncate(const KeepRule& rule, Candidates& c, const Workspace& w) {
  if (rule.top_p < 1.0) {
    const double share = ceil(rule.top_p * static_cast<double>(c.total));
    const uint64_t wanted = share > 1.0 ? static_cast<uint64_t>(share) : 1;
    narrow(c, wanted, w);
    const auto key = [&](int i) { return order_key(c.logit[i]); };
    const Cut cut = find_cut(
        c.n, wanted, key, [&](int i) { return w.weight[i]; }, w.histogram);
    drop(c, w.weight, [&](int i) { return cut.keeps(key(i), i); });
  }
  if (rule.min_p > 0.0) {
    const auto least = static_cast<uint64_t>(ceil((rule.min_p < 1.0 ? rule.min_p : 1.0) * 0x1p40));
    drop(c, w.weight, [&](int i) { return w.weight[i] >= least; });
  }
}

/// What the rule keeps of a row whose seen tokens are penalised already. At temperature 0 that is
/// the best token alone.
inline Candidates keep(const KeepRule& rule, const float* x, int vocab, const Workspace& w) {
  const Extremes extremes = scan(x, vocab, w.block_max);
  if (!extremes.is_valid) return {x, nullptr, 0, 0, 0};
  const int best = first_with_key(x, extremes.max, w.block_max);
  if (rule.temperature == 0.0f) {
    w.id[0] = best;
    w.weight[0] = uint64_t{1} << kWeightBits;
    return {x + best, w.id, 1, w.weight[0], x[best]};
  }
  Candidates c{x, nullptr, vocab, 0, x[best]};
  if (rule.top_k > 0 && rule.top_k < vocab)
    c = {w.top, w.id, keep_top(x, vocab, rule.top_k, w), 0, c.max};
  // The order of logits is the order of tempered logits, so top-k may come first and stay exact.
  c.total = fill_weights(w.weight, c.logit, c.n, c.max, rule.temperature);
  truncate(rule, c, w);
  return c;
}

/// Whether the rule leaves every token of a row the weight that it has by itself.
inline bool keeps_all(const KeepRule& rule, int vocab) {
  return rule.temperature > 0.0f && rule.repetition_penalty == 1.0f && !has_cuts(rule, vocab);
}

/// First index whose cumulative weight exceeds uniform * total, in exact arithmetic.
inline int draw(const uint64_t* weight, int n, uint64_t total, double uniform) {
  const uint64_t wanted = weight_before(uniform, total);
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

}  // namespace
}  // namespace tandem
