#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/context.h"
#include "decode/engine.h"
#include "decode/fit/memory_text.h"
#include "machine/hosted_report.h"

namespace tandem::cli {

/// What --dry-run prints: `text`, or `json` on one line where --format or --json ask for it.
/// errors   kind memory, once it is out: the plan does not fit
void print_plan(Context& cx, const std::string& text, const nlohmann::ordered_json& json,
                const MemoryPlan& plan, const decode::MemoryLimits& limits);

/// A generation, for print_plan: model, device, memory by group, predicted times. Figures
/// of time are floors: work over this machine's measured ceilings, where a run has measured them,
/// or over the rates of the card that is planned for.
struct PlanView {
  const decode::ModelFiles& files;
  const decode::EngineSpec& spec;
  const MemoryPlan& plan;
  decode::MemoryLimits limits;  // what the plan must fit into
  int64_t prompt_tokens = 0;    // that are read, what sequences share once
  double prompt_pairs = 0;      // of these and the tokens that each sees
  int context_tokens = 0;       // of one sequence at its end
  int sequences = 1;
  std::string recipe_sha256;
  /// Of keys in host memory: who attends them, and the time of a step.
  const machine::HostedPlan* hosted = nullptr;
  std::vector<machine::HostedEngine> hosted_engines = {};

  /// Prompts have `n` tokens more, after `before` others.
  void add_reading(size_t before, size_t n) {
    prompt_tokens += static_cast<int64_t>(n);
    prompt_pairs += double(n) * (double(before) + double(n) / 2);
  }
};
void print_plan(Context& cx, const PlanView& view);

/// A run that writes its plan, such as speculate::ModelPair, and what a tool adds: lines for
/// people, and the same facts for --format json.
template <class Run>
int print_plan(Context& cx, const Run& run, const std::string& lines,
               const nlohmann::ordered_json& facts) {
  print_plan(cx, run.plan_text(lines), run.plan_json(facts), run.plan(), run.limits());
  return 0;
}

}  // namespace tandem::cli
