#pragma once
#include <nlohmann/json_fwd.hpp>

#include "decode/engine.h"
#include "speculate/round/round_stats.h"

namespace tandem::speculate {

/// What drafts read of the FFN, and Sirius' figures of their rounds: the average advance length
/// (AAL), the average parameters used a token (APU), and the length of a rollback.
/// reading  of channels, from 1 on
nlohmann::ordered_json channels_json(const decode::Engine& engine, int reading,
                                     const RoundStats& rounds);

}  // namespace tandem::speculate
