#include "bench/speculation/measured_prediction.h"

#include <fmt/ranges.h>

#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bench/speculation/measured_report.h"
#include "speculate/plan/chain_tokens.h"
#include "speculate/tree/tree_choice.h"

namespace tandem::bench {

std::optional<MeasuredPrediction> predict_from_others(const PointRuns& point, const WayRuns& way) {
  if (!way.stats || !way.way.is_chain() || way.way.chooses || way.way.nested) return std::nullopt;
  MeasuredPrediction p;
  p.plain_ms = 1e3 * point.ways.front().step_s();
  std::map<int, double> target_ms = {{1, p.plain_ms}};
  std::vector<int> gammas;
  const int gamma = way.way.gamma();
  for (const WayRuns& other : point.ways) {
    const int others = other.way.gamma();
    if (!other.stats || other.error || other.way.draft.name != way.way.draft.name ||
        other.way.chooses || others == gamma)
      continue;
    const RoundParts parts = parts_of(other);
    gammas.push_back(others);
    target_ms[others + 1] = parts.target;
    p.draft_ms += parts.draft / others;
    p.rest_ms += parts.verify + parts.rest;
  }
  if (gammas.empty()) return std::nullopt;
  speculate::TimeCurve curve;
  for (const auto& [tokens, ms] : target_ms) {
    curve.tokens.push_back(tokens);
    curve.ms.push_back(ms);
  }
  const auto n = static_cast<double>(gammas.size());
  p.times_from = fmt::format("measured at gamma {}", fmt::join(gammas, ", "));
  p.draft_ms *= gamma / n;
  p.rest_ms /= n;
  p.verify_ms = curve.at(gamma + 1);
  p.tokens = way.way.simulated ? way.way.expected_tokens()
                               : speculate::chain_tokens(gamma, way.stats->share_of_tested());
  return p;
}

namespace {

/// What rounds of one draft's chains took, at all gammas that were measured.
struct ChainTimes {
  double level_ms = 0, verify_ms = 0, rest_ms = 0;  // means
  int n = 0;

  void add(const WayRuns& way) {
    const RoundParts parts = parts_of(way);
    level_ms += (parts.draft / way.way.gamma() - level_ms) / ++n;
    verify_ms += (parts.verify - verify_ms) / n;
    rest_ms += (parts.rest - rest_ms) / n;
  }
};

}  // namespace

std::optional<MeasuredPrediction> predict_nested(const PointRuns& point, const WayRuns& way,
                                                 const speculate::TimingTable* within) {
  if (!way.stats || !way.way.nested) return std::nullopt;
  const NestedWay& nested = *way.way.nested;
  MeasuredPrediction p;
  p.plain_ms = 1e3 * point.ways.front().step_s();
  std::map<int, double> target_ms = {{1, p.plain_ms}};
  ChainTimes small, self;
  for (const WayRuns& other : point.ways) {
    const bool is_small = other.way.draft.name == nested.small.name,
               is_self = other.way.draft.name == nested.self.name;
    if (!other.stats || other.error || other.way.chooses || !other.way.is_chain() ||
        !(is_small || is_self))
      continue;
    // A round of prompt lookup takes the nodes that it found.
    if (!(is_small && nested.looks_up())) target_ms[other.way.gamma() + 1] = parts_of(other).target;
    (is_small ? small : self).add(other);
  }
  if (small.n == 0 || self.n == 0) return std::nullopt;
  speculate::TimeCurve curve;
  for (const auto& [tokens, ms] : target_ms) {
    curve.tokens.push_back(tokens);
    curve.ms.push_back(ms);
  }
  p.times_from = fmt::format("measured of {} and {} alone", nested.small.name, nested.self.name);
  if (within != nullptr) {
    p.times_from += ", and of timed forwards";
    p.draft_ms = nested.shape.rounds * speculate::price_tree(nested.tree, 1, within->buckets.back(),
                                                             small.verify_ms, within->skip_deepest)
                                           .cost.ms_per_token;
  } else {
    // More rows cost a forward with few keys what they cost one with all of them.
    const double forward = self.level_ms + std::max(0.0, curve.at(nested.tree.size()) - p.plain_ms);
    p.draft_ms = nested.shape.rounds *
                 ((nested.tree.levels() - 1) * small.level_ms + forward + small.verify_ms);
  }
  p.verify_ms = curve.at(way.way.tree.size());
  p.rest_ms = self.verify_ms + self.rest_ms;
  p.tokens = way.way.simulated ? way.way.expected_tokens() : way.stats->tokens_per_round();
  return p;
}

MeasuredPrediction predict_from_forwards(const PointRuns& point, const WayRuns& way,
                                         const speculate::TimingTable& times) {
  const double tokens =
      way.way.simulated ? way.way.expected_tokens() : way.stats->tokens_per_round();
  const speculate::TreeCost cost = speculate::price_tree(way.way.tree, tokens, times.buckets.back(),
                                                         times.overhead_ms, times.skip_deepest)
                                       .cost;
  return {.times_from = "timed forwards",
          .tokens = tokens,
          .plain_ms = 1e3 * point.ways.front().step_s(),
          .draft_ms = std::accumulate(cost.draft_ms.begin(), cost.draft_ms.end(), 0.0),
          .verify_ms = cost.target_ms,
          .rest_ms = cost.overhead_ms};
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
