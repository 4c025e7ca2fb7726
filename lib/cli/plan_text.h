#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/context.h"
#include "cli/device.h"
#include "decode/engine.h"
#include "machine/hosted_plan.h"

namespace tandem::cli {

/// What --dry-run prints: `text`, or `json` on one line where --format or --json ask for it.
/// errors   kind memory, once it is out: the plan does not fit
void print_plan(Context& cx, const std::string& text, const nlohmann::ordered_json& json,
                const MemoryPlan& plan, const MemoryLimits& limits);

/// Of a run of several engines, one whose keys are in host memory.
struct HostedEngine {
  std::string name;
  machine::HostedPlan hosted;
  MemoryPlan plan;  // its own
};

/// A generation, for print_plan: model, device, memory by group, predicted times. Figures
/// of time are floors: work over this machine's measured ceilings, where a run has measured them,
/// or over the rates of the card that is planned for.
struct PlanView {
  const decode::ModelFiles& files;
  const decode::EngineSpec& spec;
  const MemoryPlan& plan;
  MemoryLimits limits;        // what the plan must fit into
  int64_t prompt_tokens = 0;  // that are read, what sequences share once
  double prompt_pairs = 0;    // of these and the tokens that each sees
  int context_tokens = 0;     // of one sequence at its end
  int sequences = 1;
  std::string recipe_sha256;
  /// Of keys in host memory: who attends them, and the time of a step.
  const machine::HostedPlan* hosted = nullptr;
  std::vector<HostedEngine> hosted_engines = {};

  /// Prompts have `n` tokens more, after `before` others.
  void add_reading(size_t before, size_t n) {
    prompt_tokens += static_cast<int64_t>(n);
    prompt_pairs += double(n) * (double(before) + double(n) / 2);
  }
};
void print_plan(Context& cx, const PlanView& view);

/// Its line about the GPU, empty for a run on the CPU; says where the GPU is not this machine's.
std::string gpu_line(const MemoryLimits& limits);

/// The device in a few words: `cpu`, `cuda:0`, `rtx-4090, not this machine's`.
std::string planned_device(const MemoryLimits& limits);

/// Its lines about memory: one a device, and one about layers that a GPU's run keeps in host
/// memory.
std::string memory_lines(const MemoryPlan& plan, const MemoryLimits& limits);

/// What these lines and gpu_line say: `gpu`, `memory` by device, `layers_streamed`, `fits`.
nlohmann::ordered_json memory_json(const MemoryPlan& plan, const MemoryLimits& limits);

}  // namespace tandem::cli
