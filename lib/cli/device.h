#pragma once
#include "recipe/sections.h"
#include "tensor/memory_plan.h"

namespace tandem::cli {

/// The device that run.device names; auto = the first GPU where there is one and the cache's kind has GPU
/// code, else the CPU.
/// errors   kind device: no such GPU
Device choose_device(const recipe::Run& run, const recipe::Cache& cache);

/// Memory that a run may use on the CPU and on its GPU: the recipe's limits, or what is free now.
struct MemoryLimits {
  size_t host = 0;
  Device gpu = {};  // the CPU where the run has none
  size_t gpu_bytes = 0;
  size_t gpu_free = 0, gpu_total = 0;  // of the card, without a limit

  /// errors   kind memory, as MemoryPlan::check_fits, or that other processes hold what the plan
  /// needs
  void check(const MemoryPlan& plan) const;
  bool fits(const MemoryPlan& plan) const;
};
MemoryLimits memory_limits(const recipe::Run& run, Device device);

}  // namespace tandem::cli
