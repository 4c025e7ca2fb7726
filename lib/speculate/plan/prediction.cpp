#include "speculate/plan/prediction.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "decode/model_files.h"
#include "speculate/plan/measured_costs.h"

namespace tandem::speculate {
namespace {

/// The forwards that draft; none where none does.
std::optional<ModelCosts> drafting_costs(const NamedDraft& draft, const ModelCosts& target,
                                         DType dtype) {
  if (draft.shares_cache()) return target;
  if (draft.kind == DraftKind::model) return costs_of(decode::open_config(draft.path), dtype);
  return std::nullopt;
}

std::optional<int> room(const HardwareSection& hardware, const ModelCosts& target,
                        const NamedDraft& draft, const KeyChoice& choice,
                        const std::optional<ModelCosts>& drafting, const PredictionSpec& spec,
                        int gamma) {
  const std::optional<double> memory = hardware.memory_bytes();
  if (!memory) return std::nullopt;
  const bool other = draft.kind == DraftKind::model;
  // A self-draft reads the target's own keys, but copies of those that snapkv chose; a verified
  // chain takes gamma + 1 rows more.
  const bool keeps_keys =
      other || (draft.kind == DraftKind::self && choice.keys == recipe::CacheKind::snapkv);
  const double context = spec.work.context + spec.new_tokens + (gamma > 0 ? gamma + 1 : 0);
  const Holdings holdings{.memory_bytes = *memory,
                          .context = context,
                          .draft_context = keeps_keys ? keys_read(choice, context) : 0};
  return most_sequences(hardware.rates(), target, other ? &*drafting : nullptr, holdings);
}

}  // namespace

std::optional<double> Prediction::verify_ms() const {
  if (chain.gamma == 0) return std::nullopt;
  return cost.target.at(chain.gamma + 1);
}

Prediction predict(const HardwareSection& hardware, const ModelCosts& target,
                   const NamedDraft& draft, const PredictionSpec& spec) {
  const MachineRates rates = hardware.rates();
  const std::optional<ModelCosts> drafting = drafting_costs(draft, target, spec.dtype);
  const bool none = draft.kind == DraftKind::none;
  const auto known =
      key_choice(draft.cache_at(static_cast<int64_t>(spec.work.context)), spec.work.context);
  if (!known)
    throw recipe_error("bench.drafts", "'{}' has cache.kind {}, whose costs are not known",
                       draft.name, recipe::yaml_text(draft.cache.kind))
        .hint("choose another kind, or measure the draft");
  const KeyChoice& choice = *known;
  const PlanInputs plan{.machine = rates,
                        .target = target,
                        .draft = {.model = drafting, .choice = choice},
                        .most_gamma = none ? 0 : std::max(spec.gamma, spec.most_gamma)};
  std::optional<MeasuredCosts> measured;
  if (!draft.timing.empty()) measured.emplace(read_timing(draft.timing), draft.timing.string());
  const CostAt cost_at = [&](const Workload& work) {
    return measured ? measured->at(work, plan.most_gamma) : sheet_cost(plan, work);
  };
  Prediction p;
  p.cost = cost_at(spec.work);
  p.times_from = !measured                        ? "roofline"
                 : measured->is_fitted(spec.work) ? "fitted"
                                                  : "interpolated";
  if (!none) p.alpha = assumed_alpha(draft, spec.work.context);
  const bool given = spec.gamma > 0 && !none;
  p.chain = given ? at_gamma(p.cost, spec.gamma, p.alpha.value) : best_chain(p.cost, p.alpha.value);
  p.choice = given ? p.chain : best_gamma(p.cost, p.alpha.value);
  p.most_sequences = room(hardware, target, draft, choice, drafting, spec, p.choice.gamma);
  if (none) return p;
  p.least = least_alpha(p.cost, spec.speedup);
  const double longest = spec.longest;
  const int batch = spec.work.batch;
  p.pays_from = pays_from(cost_at, p.alpha.value, batch, longest);
  if (const int most = p.most_sequences.value_or(0); most > batch)
    p.inflection = inflection_context(cost_at, p.alpha.value, {batch, most}, longest);
  if (draft.shares_cache() && choice.keys != recipe::CacheKind::full) {
    p.row_keys = key_equivalent_of_row(rates, target);
    p.critical = critical_context(
        *p.row_keys, {.gamma = p.chain.gamma, .alpha = p.alpha.value, .budget = choice.budget},
        spec.speedup);
  }
  return p;
}

nlohmann::ordered_json prediction_json(const Prediction& p, int batch) {
  nlohmann::ordered_json j = {{"times_from", p.times_from},
                              {"gamma", p.choice.gamma},
                              {"tokens_per_round", p.choice.tokens},
                              {"plain_step_ms", p.cost.plain_ms()},
                              {"round_ms", p.choice.round_ms},
                              {"tpot_ms", p.choice.token_ms},
                              {"speedup", p.choice.speedup},
                              {"decode_tok_s", p.decode_tok_s(batch)},
                              {"plain_decode_tok_s", p.plain_tok_s(batch)}};
  if (p.alpha.value > 0) {
    j["draft_step_ms"] = p.cost.draft.at(1);
    j["rest_ms"] = p.cost.overhead_ms;
    j["chain_gamma"] = p.chain.gamma;
    j["chain_speedup"] = p.chain.speedup;
  }
  if (const auto verify = p.verify_ms()) j["verify_ms"] = *verify;
  if (p.least) {
    j["least_alpha"] = p.least->alpha;
    j["least_alpha_gamma"] = p.least->gamma;
  }
  if (p.row_keys) j["row_key_tokens"] = *p.row_keys;
  if (p.critical) j["critical_context_tokens"] = *p.critical;
  if (p.pays_from) j["pays_from_tokens"] = *p.pays_from;
  if (p.inflection) j["inflection_tokens"] = *p.inflection;
  if (p.most_sequences) j["most_sequences"] = *p.most_sequences;
  return j;
}

}  // namespace tandem::speculate
