#include "speculate/plan/sets_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace tandem::speculate {
namespace {

constexpr double kGiga = 1e9, kMilli = 1e-3;

double ms_of(const model::ForwardBytes& bytes, const machine::HostedRates& rates) {
  return std::max(bytes.streamed / (kGiga * rates.link_gbps),
                  bytes.read / (kGiga * rates.gpu_gbps)) /
         kMilli;
}

nlohmann::ordered_json choice_json(const GammaChoice& c) {
  return {{"gamma", c.gamma},
          {"tokens_per_round", c.tokens},
          {"ms_per_token", c.token_ms},
          {"speedup", c.speedup}};
}

std::string choice_text(const GammaChoice& c) {
  return fmt::format("gamma {}, {:.2f} ms per token, {:.1f}x plain decoding", c.gamma, c.token_ms,
                     c.speedup);
}

}  // namespace

std::optional<SetsPlan> plan_sets(const ModelPair& pair, double alpha, int most, int gamma) {
  const decode::Savings& savings = pair.target_spec().savings;
  if (savings.set_channels == 0) return {};
  const model::WeightPlaces places{.device = pair.device(),
                                   .n_streamed = savings.n_streamed,
                                   .by_channel = true,
                                   .set_channels = savings.set_channels};
  const auto bytes = [&](model::ReadKind kind) {
    return model::forward_bytes(pair.target().config, pair.compute(), places, kind);
  };
  const decode::Placement& place = pair.place();
  SetsPlan plan{.all = bytes(model::ReadKind::all),
                .set = bytes(model::ReadKind::set),
                .rates = place.plan_for ? machine::assumed_rates(*place.plan_for)
                                        : machine::measured_rates(place.device),
                .alpha = alpha};
  const double plain_ms = ms_of(plan.all, plan.rates);
  plan.cost = {.target = {{1, 1 + std::max(most, gamma)}, {plain_ms, plain_ms}},
               .draft = {{1}, {ms_of(plan.set, plan.rates)}},
               .skip_deepest = true};
  plan.best = best_gamma(plan.cost, alpha);
  if (gamma > 0) plan.at = at_gamma(plan.cost, gamma, alpha);
  return plan;
}

std::string SetsPlan::lines(const decode::Savings& savings,
                            const model::ModelConfig& config) const {
  return fmt::format(
      "weights  {}\nlink     {:.2f} GB per verification, {:.2f} GB per draft step, at {:.1f} GB/s "
      "({})\n         plain step {:.2f} ms, draft step {:.2f} ms\npredicted at acceptance {:.3g}, "
      "from bytes only: best {}{}\n",
      savings.text(config.n_layers), all.streamed / kGiga, set.streamed / kGiga, rates.link_gbps,
      rates.gpu_source, cost.plain_ms(), cost.draft.at(1), alpha, choice_text(best),
      at ? ", as set " + choice_text(*at) : "");
}

nlohmann::ordered_json SetsPlan::json() const {
  nlohmann::ordered_json j = {
      {"check_link_bytes", all.streamed}, {"draft_link_bytes", set.streamed},
      {"link_gbps", rates.link_gbps},     {"gpu_gbps", rates.gpu_gbps},
      {"rates", rates.gpu_source},        {"plain_ms", cost.plain_ms()},
      {"draft_ms", cost.draft.at(1)},     {"acceptance", alpha},
      {"best", choice_json(best)}};
  if (at) j["asked"] = choice_json(*at);
  return j;
}

}  // namespace tandem::speculate
