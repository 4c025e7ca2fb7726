// Straightforward and independent of the bodies: double arithmetic, std::sort, one step at a time.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/sample/kept_ref.h"
#include "kernels/sample/workspace.h"

namespace tandem {
namespace {

std::vector<double> read_row(const float* logits, int row, int vocab) {
  const float* x = logits + static_cast<int64_t>(row) * vocab;
  return {x, x + vocab};
}

bool is_meaningful(const std::vector<double>& x) {
  const auto bad = [](double v) { return std::isnan(v) || v == HUGE_VAL; };
  const auto finite = [](double v) { return std::isfinite(v); };
  return std::none_of(x.begin(), x.end(), bad) && std::any_of(x.begin(), x.end(), finite);
}

/// Ids by descending logit, ties by ascending id.
std::vector<int> ranking(const std::vector<double>& x) {
  std::vector<int> ids(x.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) {
    return x[static_cast<size_t>(a)] > x[static_cast<size_t>(b)];
  });
  return ids;
}

double log_sum_exp(const std::vector<double>& x, double max) {
  double sum = 0;
  for (const double v : x) sum += std::exp(v - max);
  return max + std::log(sum);
}

int sample_row(const SampleParams& p, int row) {
  const bool has_seen = p.seen != nullptr;
  const int32_t* seen = has_seen ? p.seen + p.seen_begin[row] : nullptr;
  const std::vector<double> weight =
      kept_weights_ref(p.rule, p.logits + static_cast<int64_t>(row) * p.vocab, p.vocab,
                       {seen, has_seen ? p.seen + p.seen_begin[row + 1] : nullptr});
  if (weight.empty()) return kInvalidToken;
  if (p.rule.temperature == 0)
    return static_cast<int>(std::max_element(weight.begin(), weight.end()) - weight.begin());
  const double wanted = p.uniform[row] * std::accumulate(weight.begin(), weight.end(), 0.0);
  double mass = 0;
  int last = 0;
  for (int id = 0; id < p.vocab; ++id) {
    if (weight[static_cast<size_t>(id)] == 0) continue;
    if ((mass += weight[static_cast<size_t>(id)]) > wanted) return id;
    last = id;
  }
  return last;
}

}  // namespace

std::vector<double> kept_weights_ref(const KeepRule& rule, const float* row, int vocab,
                                     const std::vector<int32_t>& seen) {
  std::vector<double> x(row, row + vocab);
  if (!is_meaningful(x)) return {};
  const std::vector<double> original = x;
  for (const int32_t token : seen) {
    const auto id = static_cast<size_t>(token);
    x[id] = static_cast<float>(original[id] < 0 ? original[id] * rule.repetition_penalty
                                                : original[id] / rule.repetition_penalty);
  }
  const bool keeps_all = rule.temperature > 0 && rule.top_k == 0 && rule.top_p >= 1;
  std::vector<int> kept(x.size());
  std::iota(kept.begin(), kept.end(), 0);
  if (!keeps_all) kept = ranking(x);
  const double max = *std::max_element(x.begin(), x.end());
  if (rule.temperature == 0) kept.resize(1);
  const auto weight = [&](int id) {
    const double below = x[static_cast<size_t>(id)] - max;
    return below == 0 ? 1.0 : std::exp(below / rule.temperature);
  };
  if (rule.top_k > 0 && rule.top_k < vocab)
    kept.resize(std::min(kept.size(), static_cast<size_t>(rule.top_k)));
  if (rule.top_p < 1) {
    const double sum = std::accumulate(kept.begin(), kept.end(), 0.0,
                                       [&](double s, int id) { return s + weight(id); });
    double mass = 0;
    size_t n = 0;
    while (n < kept.size() && (n == 0 || mass < rule.top_p * sum)) mass += weight(kept[n++]);
    kept.resize(n);
  }
  std::vector<double> weights(x.size());
  for (const int id : kept)
    if (weight(id) >= std::min(1.0, rule.min_p)) weights[static_cast<size_t>(id)] = weight(id);
  return weights;
}

size_t sample_workspace_bytes(int vocab) { return lay_out(nullptr, vocab).bytes; }

void logit_stats_ref(const LogitStatsParams& p, Range rows) {
  for (int r = rows.begin; r < rows.end; ++r) {
    const std::vector<double> x = read_row(p.logits, r, p.vocab);
    const bool ok = is_meaningful(x);
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    const auto best = std::max_element(x.begin(), x.end());
    p.argmax[r] = ok ? static_cast<int32_t>(best - x.begin()) : kInvalidToken;
    p.max[r] = ok ? static_cast<float>(*best) : kNan;
    p.lse[r] = ok ? static_cast<float>(log_sum_exp(x, *best)) : kNan;
  }
}

void top_n_ref(const TopNParams& p, Range rows) {
  for (int r = rows.begin; r < rows.end; ++r) {
    const std::vector<double> x = read_row(p.logits, r, p.vocab);
    const bool ok = is_meaningful(x);
    const std::vector<int> ids = ranking(x);
    for (int i = 0; i < p.n; ++i) {
      const int64_t at = static_cast<int64_t>(r) * p.n + i;
      const int id = ids[static_cast<size_t>(i)];
      p.ids[at] = ok ? id : kInvalidToken;
      p.logprobs[at] = ok ? static_cast<float>(x[static_cast<size_t>(id)]) - p.lse[r]
                          : std::numeric_limits<float>::quiet_NaN();
    }
  }
}

void sample_ref(const SampleParams& p, Range rows) {
  for (int r = rows.begin; r < rows.end; ++r) p.tokens[r] = sample_row(p, r);
}

}  // namespace tandem
