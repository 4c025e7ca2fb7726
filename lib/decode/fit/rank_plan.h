#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "decode/engine.h"
#include "decode/fit/placement.h"

namespace tandem::decode {

/// What --dry-run reports of a run that several ranks share; nothing where one has all.
struct RankPlan {
  /// Ranks that have equally much of the model.
  struct Kind {
    std::vector<int> ranks;
    model::Shard shard;  // of the first of them
    size_t peak = 0;     // of an engine alone, where it computes
  };
  std::vector<Kind> kinds = {};
  Device device = {};
  // Of a decode step:
  int sums = 0;        // of whole rows
  double bytes = 0;    // that each rank sends to each other one
  double seconds = 0;  // that this takes; 0 where no rate is known

  std::string lines() const;
  nlohmann::ordered_json json() const;
};

/// files      what one of the ranks has
/// sequences  of a step
RankPlan rank_plan(const ModelFiles& files, const EngineSpec& spec, int sequences,
                   const MemoryLimits& limits);

}  // namespace tandem::decode
