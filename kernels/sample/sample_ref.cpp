// Straightforward and independent of the bodies: double arithmetic, std::sort, one step at a time.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

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
  std::vector<double> x = read_row(p.logits, row, p.vocab);
  if (!is_meaningful(x)) return kInvalidToken;
  if (p.seen != nullptr) {
    const std::vector<double> original = x;
    for (int i = p.seen_begin[row]; i < p.seen_begin[row + 1]; ++i) {
      const auto id = static_cast<size_t>(p.seen[i]);
      x[id] = static_cast<float>(original[id] < 0 ? original[id] * p.repetition_penalty
                                                  : original[id] / p.repetition_penalty);
    }
  }
  std::vector<int> kept = ranking(x);
  if (p.temperature == 0) return kept[0];
  const double max = x[static_cast<size_t>(kept[0])];
  const auto weight = [&](int id) {
    return std::exp((x[static_cast<size_t>(id)] - max) / p.temperature);
  };
  const auto sum = [&] {
    return std::accumulate(kept.begin(), kept.end(), 0.0,
                           [&](double s, int id) { return s + weight(id); });
  };
  if (p.top_k > 0 && p.top_k < p.vocab) kept.resize(static_cast<size_t>(p.top_k));
  if (p.top_p < 1) {
    const double wanted = p.top_p * sum();
    double mass = 0;
    size_t n = 0;
    while (n < kept.size() && (n == 0 || mass < wanted)) mass += weight(kept[n++]);
    kept.resize(n);
  }
  if (p.min_p > 0) {
    const double least = std::min(1.0, p.min_p);
    kept.erase(std::remove_if(kept.begin(), kept.end(), [&](int id) { return weight(id) < least; }),
               kept.end());
  }
  std::sort(kept.begin(), kept.end());
  const double wanted = p.uniform[row] * sum();
  double mass = 0;
  for (const int id : kept)
    if ((mass += weight(id)) > wanted) return id;
  return kept.back();
}

}  // namespace

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
