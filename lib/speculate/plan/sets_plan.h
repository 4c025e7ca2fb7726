#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "machine/hosted_rates.h"
#include "speculate/plan/gamma_choice.h"
#include "speculate/plan/model_pair.h"

namespace tandem::speculate {

/// What rounds will take whose drafts read FFN channels that are on the GPU, while the others come
/// over the link for their checks: the slower of the link and of the GPU's memory, by bytes alone.
struct SetsPlan {
  model::ForwardBytes all, set;  // of a check and of a draft
  machine::HostedRates rates;
  double alpha = 0;  // assumed
  StepCost cost = {};
  GammaChoice best = {};
  std::optional<GammaChoice> at = {};  // of the gamma that is asked for

  /// Lines of --dry-run, and the same facts.
  std::string lines(const decode::Savings& savings, const model::ModelConfig& config) const;
  nlohmann::ordered_json json() const;
};

/// most     drafted tokens of a chain that are tried for the best
/// gamma    that is asked for; 0: each round chooses
/// returns  none where the target's channels are not divided
/// errors   kind device, memory: rates of a GPU that is here cannot be measured
std::optional<SetsPlan> plan_sets(const ModelPair& pair, double alpha, int most, int gamma);

}  // namespace tandem::speculate
