#include "tools/magicdec/measured_prediction.h"

#include <fmt/ranges.h>

#include <map>
#include <nlohmann/json.hpp>

#include "speculate/tree/timing.h"
#include "tools/magicdec/measured_report.h"

namespace tandem::tools {

std::optional<MeasuredPrediction> predict_from_others(const PointRuns& point, const WayRuns& way) {
  if (!way.stats) return std::nullopt;
  const double plain_ms = 1e3 * point.ways.front().step_s();
  MeasuredPrediction p;
  std::map<int, double> target_ms = {{1, plain_ms}};
  double draft_ms = 0, rest_ms = 0;
  for (const WayRuns& other : point.ways) {
    if (!other.stats || other.error || other.way.draft.name != way.way.draft.name ||
        other.way.gamma == way.way.gamma)
      continue;
    const RoundParts parts = parts_of(other);
    p.gammas.push_back(other.way.gamma);
    target_ms[other.way.gamma + 1] = parts.target;
    draft_ms += parts.draft / other.way.gamma;
    rest_ms += parts.verify + parts.rest;
  }
  if (p.gammas.empty()) return std::nullopt;
  speculate::TimeCurve curve;
  for (const auto& [tokens, ms] : target_ms) {
    curve.tokens.push_back(tokens);
    curve.ms.push_back(ms);
  }
  const auto n = static_cast<double>(p.gammas.size());
  p.times = {
      .plain_s = 1e-3 * plain_ms, .draft_s = 1e-3 * draft_ms / n, .host_s = 1e-3 * rest_ms / n};
  for (int gamma = 1; gamma <= way.way.gamma; ++gamma)
    p.times.verify_s.push_back(1e-3 * curve.at(gamma + 1));
  p.choice = speculate::at_gamma(p.times, way.way.gamma,
                                 way.way.alpha.value_or(way.stats->share_of_tested()));
  return p;
}

nlohmann::ordered_json prediction_json(const MeasuredPrediction& p) {
  return {{"times_from", fmt::format("measured at gamma {}", fmt::join(p.gammas, ", "))},
          {"gamma", p.choice.gamma},
          {"tokens_per_round", p.choice.tokens},
          {"plain_step_ms", 1e3 * p.times.plain_s},
          {"draft_step_ms", 1e3 * p.times.draft_s},
          {"verify_ms", 1e3 * p.times.verify_s.back()},
          {"rest_ms", 1e3 * p.times.host_s},
          {"round_ms", 1e3 * p.choice.round_s},
          {"tpot_ms", 1e3 * p.choice.token_s},
          {"speedup", p.choice.speedup}};
}

}  // namespace tandem::tools
