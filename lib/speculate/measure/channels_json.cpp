#include "speculate/measure/channels_json.h"

#include <nlohmann/json.hpp>

#include "model/spec/work.h"
#include "speculate/plan/chain_tokens.h"

namespace tandem::speculate {

nlohmann::ordered_json channels_json(const decode::Engine& engine, int reading,
                                     const RoundStats& rounds) {
  const ffn::Policy& policy = engine.channels()->policy(reading);
  const double share = engine.channels()->share_read(reading);
  const double density = model::param_density(engine.config(), share, policy.needs().after_gate);
  const double advance = rounds.tokens_per_round(), k = rounds.mean_offered();
  return {{"policy", policy.name()},
          {"channels_read", share},
          {"density", density},
          {"aal", advance},
          {"k", k},
          {"apu", params_per_token(k, density, advance)},
          {"rollback", rounds.mean_rollback()}};
}

}  // namespace tandem::speculate
