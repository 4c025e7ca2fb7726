#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "bench/hardware.h"
#include "cli/device.h"
#include "decode/engine.h"

namespace tandem::cli {

/// What --dry-run prints of a generation: model, device, memory by group, predicted times. Figures
/// of time are floors: work over this machine's measured ceilings, where a run has measured them.
struct PlanView {
  const decode::ModelFiles& files;
  const decode::EngineSpec& spec;
  const MemoryPlan& plan;
  const MemoryLimits& limits; // what the plan must fit into
  int64_t prompt_tokens = 0;  // that are read, what sequences share once
  double prompt_pairs = 0;    // of these and the tokens that each sees
  int context_tokens = 0;     // of one sequence at its end
  int sequences = 1;
  std::string recipe_sha256;
};
std::string plan_text(const PlanView& view, const std::optional<bench::Ceilings>& ceilings);

/// Its lines about memory: one a device, and one about layers that a GPU's run keeps in host
/// memory.
std::string memory_lines(const MemoryPlan& plan, const MemoryLimits& limits);

}  // namespace tandem::cli
