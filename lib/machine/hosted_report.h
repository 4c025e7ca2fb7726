#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "machine/hosted_plan.h"
#include "tensor/memory_plan.h"

namespace tandem::machine {

/// Who attends keys in host memory, and why: `both: the CPU 58 %, the GPU 42 % over the link, which
/// chooses; 13.1 ms a step, cpu 19.8, gpu 25.9`.
std::string hosted_choice(const HostedPlan& plan);

/// What a plan says of keys in host memory: where they lie, the choice, bytes a token, the time of
/// a step and the rates that it follows from. Lines that begin with a word, each ended.
std::string hosted_lines(const HostedPlan& plan, const MemoryPlan& memory, Device gpu);

/// The same, for plans, summaries and records: who attends, bytes a step and a token, times, rates,
/// the ways that were left.
nlohmann::ordered_json hosted_json(const HostedPlan& plan);

/// One engine of a run of several, with its KV cache in host memory.
struct HostedEngine {
  std::string name;
  HostedPlan hosted;
  MemoryPlan plan;  // its own
};

}  // namespace tandem::machine
