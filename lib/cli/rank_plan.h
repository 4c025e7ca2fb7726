#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/gpu_cards.h"
#include "decode/engine.h"

// What --dry-run reports of a run that several ranks share.
namespace tandem::cli {

/// Ranks that have equally much of a model.
struct RankKind {
  std::vector<int> ranks;
  model::Shard shard;  // of the first of them
  MemoryPlan plan;     // of an engine alone
};

/// What goes between ranks in a decode step.
struct RankTraffic {
  int sums = 0;        // of whole rows
  double bytes = 0;    // that each rank sends to each other one
  double seconds = 0;  // 0 where no rate is known
};

/// Empty where one rank has all.
/// files    what one of the ranks has
std::vector<RankKind> rank_kinds(const decode::ModelFiles& files, const decode::EngineSpec& spec);
/// card     of a plan for one, whose data sheet gives the rate
RankTraffic rank_traffic(const decode::ModelFiles& files, int sequences, const GpuCard* card);

/// Both as lines, and as JSON.
std::string rank_lines(const std::vector<RankKind>& kinds, const RankTraffic& traffic,
                       Device device);
nlohmann::ordered_json rank_json(const std::vector<RankKind>& kinds, const RankTraffic& traffic,
                                 Device device);

}  // namespace tandem::cli
