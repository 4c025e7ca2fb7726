#include "train/settings.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "recipe/fields_of.h"
#include "recipe/value_of.h"

namespace tandem::model {

std::string read_scalar(const recipe::Node& node, Role& out) {
  std::array<std::string_view, kLayerRoles.size()> words;
  std::ranges::transform(kLayerRoles, words.begin(), word_of);
  size_t index = 0;
  std::string problem = recipe::read_enum(node, words.data(), words.size(), index);
  if (problem.empty()) out = kLayerRoles[index];
  return problem;
}

}  // namespace tandem::model

namespace tandem::train {

std::string read_scalar(const recipe::Node& node, LearningRate& out) {
  LearningRate read{.automatic = node.kind == recipe::Node::Kind::scalar && !node.quoted &&
                                 node.scalar == "auto"};
  if (!read.automatic && (!recipe::read_scalar(node, read.value).empty() || read.value < 0 ||
                          !std::isfinite(read.value)))
    return "expected auto or a number of at least 0, found " + node.described();
  out = read;
  return {};
}

std::string yaml_text(LearningRate rate) {
  return rate.automatic ? "auto" : recipe::yaml_text(rate.value);
}

nlohmann::json json_of(LearningRate rate) {
  if (rate.automatic) return yaml_text(rate);
  return rate.value;
}

void OptimizerSettings::check(recipe::Problems& p) const {
  if (betas.size() != 2 || betas[0] >= 1 || betas[1] >= 1)
    p.field("betas", "train.optimizer.betas: expected two numbers below 1, such as [0.9, 0.95]");
  if (stochastic_rounding.value_or(false) && states != StateType::bf16)
    p.field("stochastic_rounding",
            "train.optimizer.stochastic_rounding: needs states bf16, found f32: set states, or "
            "leave it out");
}

int64_t ScheduleSettings::warmup_of(int64_t steps) const {
  constexpr int64_t kMost = 100;
  return warmup_steps ? *warmup_steps : std::min(kMost, steps * 3 / 100);
}

void TrainSettings::check(recipe::Problems& p) const {
  batches.check(p);
  if (steps && epochs)
    p.field("epochs", "train.epochs: is {}, but train.steps is {}: set one of them to null",
            *epochs, *steps);
  if (steps && schedule.warmup_steps && *schedule.warmup_steps >= *steps)
    p.field(
        "schedule.warmup_steps",
        "train.schedule.warmup_steps: is {} of {} steps, so training never reaches lr: lower it",
        *schedule.warmup_steps, *steps);
  if (optimizer.states == StateType::bf16 && optimizer.betas.size() == 2 &&
      !optimizer.allows_narrow_states())
    p.field("optimizer.betas",
            "train.optimizer.betas: states bf16 supports a second beta of at most {}, since bf16 "
            "rounds away a slower decay; lower it, or set states f32",
            OptimizerSettings::kMostNarrowBeta);
  if (optimizer.states == StateType::bf16 && method != Method::full)
    p.field("optimizer.states",
            "train.optimizer.states: bf16 needs method full, found {}: set states f32, or change "
            "the method",
            recipe::yaml_text(method));
  const auto shares = select.ratios.by_role();
  if (method == Method::s2ft && std::ranges::all_of(shares, [](double x) { return x == 0; }))
    p.field("select.ratios", "train.select.ratios: expected one above 0, found only 0");
  if (method != Method::s2ft && !select.exclude.empty())
    p.field("select.exclude", "train.select.exclude: needs method s2ft, found {}: leave it out",
            recipe::yaml_text(method));
  const bool is_lora = method == Method::lora || method == Method::dora;
  auto targets = lora.targets;
  std::ranges::sort(targets);
  if (is_lora && targets.empty())
    p.field("lora.targets", "train.lora.targets: expected at least one layer, found none");
  if (std::ranges::adjacent_find(targets) != targets.end())
    p.field("lora.targets", "train.lora.targets: expected each layer once, found one twice");
}

}  // namespace tandem::train

template std::unique_ptr<tandem::recipe::Value> tandem::recipe::value_of(
    std::vector<tandem::model::Role>&);
template std::unique_ptr<tandem::recipe::Value> tandem::recipe::value_of(
    std::optional<tandem::train::LearningRate>&);
