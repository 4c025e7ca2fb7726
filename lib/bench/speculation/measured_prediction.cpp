#include "bench/speculation/measured_prediction.h"

#include <fmt/ranges.h>

#include <map>
#include <nlohmann/json.hpp>

#include "bench/speculation/measured_report.h"
#include "speculate/plan/chain_tokens.h"

namespace tandem::bench {

namespace {

using TargetTimes = std::map<int, double>;  // ms by tokens of the forward

/// Times of one draft's chains at all gammas that were measured.
struct ChainTimes {
  std::vector<int> gammas;
  double level_ms = 0, verify_ms = 0, rest_ms = 0;  // means

  /// Returns what the target's forward took.
  double add(const WayRuns& way) {
    const RoundParts parts = parts_of(way);
    const int gamma = way.way.gamma();
    gammas.push_back(gamma);
    const auto n = static_cast<double>(gammas.size());
    level_ms += (parts.draft / gamma - level_ms) / n;
    verify_ms += (parts.verify - verify_ms) / n;
    rest_ms += (parts.rest - rest_ms) / n;
    return parts.target;
  }
};

speculate::TimeCurve curve_of(const TargetTimes& ms) {
  speculate::TimeCurve curve;
  for (const auto& [tokens, time] : ms) {
    curve.tokens.push_back(tokens);
    curve.ms.push_back(time);
  }
  return curve;
}

double plain_ms(const PointRuns& point) { return 1e3 * point.ways.front().step_s(); }

double tokens_of(const WayRuns& way) {
  return way.way.simulated ? way.way.expected_tokens() : way.stats->tokens_per_round();
}

MeasuredPrediction predicted(const PointRuns& point, double tokens,
                             const speculate::RoundCost& round) {
  return {.times_from = "",
          .tokens = tokens,
          .plain_ms = plain_ms(point),
          .draft_ms = round.drafts_ms(),
          .verify_ms = round.target_ms,
          .rest_ms = round.overhead_ms};
}

}  // namespace

std::optional<MeasuredPrediction> predict_from_others(const PointRuns& point, const WayRuns& way) {
  if (!way.stats || !way.way.is_chain() || way.way.chooses || way.way.nested) return std::nullopt;
  TargetTimes target_ms = {{1, plain_ms(point)}};
  ChainTimes times;
  const int gamma = way.way.gamma();
  for (const WayRuns& other : point.ways)
    if (other.stats && !other.error && other.way.draft.name == way.way.draft.name &&
        !other.way.chooses && other.way.gamma() != gamma)
      target_ms[other.way.gamma() + 1] = times.add(other);
  if (times.gammas.empty()) return std::nullopt;
  const speculate::StepCost cost{.target = curve_of(target_ms),
                                 .draft = {{1}, {times.level_ms}},
                                 .overhead_ms = times.verify_ms + times.rest_ms,
                                 .skip_deepest = true};
  const double tokens = way.way.simulated
                            ? way.way.expected_tokens()
                            : speculate::chain_tokens(gamma, way.stats->share_of_tested());
  MeasuredPrediction p = predicted(point, tokens, cost.chain(gamma));
  p.times_from = fmt::format("measured at gamma {}", fmt::join(times.gammas, ", "));
  return p;
}

std::optional<MeasuredPrediction> predict_nested(const PointRuns& point, const WayRuns& way,
                                                 const speculate::TimingTable* within) {
  if (!way.stats || !way.way.nested) return std::nullopt;
  const NestedWay& nested = *way.way.nested;
  TargetTimes target_ms = {{1, plain_ms(point)}};
  ChainTimes small, self;
  for (const WayRuns& other : point.ways) {
    const bool is_small = other.way.draft.name == nested.small.name,
               is_self = other.way.draft.name == nested.self.name;
    if (!other.stats || other.error || other.way.chooses || !other.way.is_chain() ||
        !(is_small || is_self))
      continue;
    const double ms = (is_small ? small : self).add(other);
    // A round of prompt lookup takes the nodes that it found.
    if (!(is_small && nested.looks_up())) target_ms[other.way.gamma() + 1] = ms;
  }
  if (small.gammas.empty() || self.gammas.empty()) return std::nullopt;
  const speculate::TimeCurve target = curve_of(target_ms);
  speculate::StepCost inner;
  if (within != nullptr) {
    inner = within->buckets.back();
  } else {
    // More rows cost a forward with few keys what they cost one with all of them.
    const double rows_ms = target.at(nested.tree.size()) - plain_ms(point);
    inner = {.target = {{1}, {self.level_ms + std::max(0.0, rows_ms)}},
             .draft = {{1}, {small.level_ms}},
             .skip_deepest = true};
  }
  inner.overhead_ms = small.verify_ms;
  return MeasuredPrediction{
      .times_from =
          fmt::format("measured of {} and {} alone{}", nested.small.name, nested.self.name,
                      within != nullptr ? ", and of timed forwards" : ""),
      .tokens = tokens_of(way),
      .plain_ms = plain_ms(point),
      .draft_ms = nested.shape.rounds * inner.round(nested.tree.widths()).total_ms(),
      .verify_ms = target.at(way.way.tree.size()),
      .rest_ms = self.verify_ms + self.rest_ms};
}

MeasuredPrediction predict_from_forwards(const PointRuns& point, const WayRuns& way,
                                         const speculate::TimingTable& times) {
  MeasuredPrediction p =
      predicted(point, tokens_of(way), times.buckets.back().round(way.way.tree.widths()));
  p.times_from = "timed forwards";
  return p;
}

nlohmann::ordered_json prediction_json(const MeasuredPrediction& p, const Way& way) {
  nlohmann::ordered_json j = {
      {"times_from", p.times_from}, {"tokens_per_round", p.tokens}, {"plain_step_ms", p.plain_ms},
      {"draft_ms", p.draft_ms},     {"verify_ms", p.verify_ms},     {"rest_ms", p.rest_ms},
      {"round_ms", p.round_ms()},   {"tpot_ms", p.token_ms()},      {"speedup", p.speedup()}};
  if (way.is_chain() && !way.nested) {
    j["gamma"] = way.gamma();
    j["draft_step_ms"] = p.draft_ms / way.gamma();
  }
  return j;
}

}  // namespace tandem::bench
