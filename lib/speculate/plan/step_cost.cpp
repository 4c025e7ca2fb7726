#include "speculate/plan/step_cost.h"

#include <algorithm>
#include <numeric>

namespace tandem::speculate {

double TimeCurve::at(int n) const {
  if (tokens.size() == 1 || n <= tokens.front()) return ms.front();
  const bool beyond = n > tokens.back();
  const auto i =
      static_cast<size_t>(std::ranges::lower_bound(tokens, n) - tokens.begin()) - (beyond ? 1 : 0);
  const double slope = (ms[i] - ms[i - 1]) / (tokens[i] - tokens[i - 1]);
  if (beyond) return ms[i] + std::max(0.0, slope) * (n - tokens[i]);
  return ms[i - 1] + slope * (n - tokens[i - 1]);
}

double TimeCurve::smallest() const { return std::ranges::min(ms); }

double RoundCost::drafts_ms() const {
  return std::accumulate(draft_ms.begin(), draft_ms.end(), 0.0);
}

RoundCost StepCost::round(std::span<const int> widths, double tokens) const {
  RoundCost cost;
  cost.target_ms = target.at(std::accumulate(widths.begin(), widths.end(), 0));
  cost.overhead_ms = overhead_ms;
  const int n = calls(static_cast<int>(widths.size()));
  for (const int w : widths.first(static_cast<size_t>(n))) cost.draft_ms.push_back(draft.at(w));
  cost.ms_per_token = cost.total_ms() / tokens + token_ms;
  return cost;
}

RoundCost StepCost::chain(int gamma) const {
  return round(std::vector(static_cast<size_t>(gamma) + 1, 1));
}

double StepCost::least(int size, int levels, double tokens) const {
  return (calls(levels) * draft.smallest() + target.at(size) + overhead_ms) / tokens + token_ms;
}

}  // namespace tandem::speculate
