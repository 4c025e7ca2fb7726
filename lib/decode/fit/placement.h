#pragma once
#include <limits>
#include <optional>
#include <span>

#include "base/gpu_cards.h"
#include "ranks/launch.h"
#include "recipe/sections.h"
#include "tensor/memory_plan.h"

namespace tandem::decode {

/// The device that run.device names; auto = the first GPU where there is one, else the CPU. Of
/// several ranks of a machine the first has the first GPU, or the first of those that are named.
/// errors   kind device: no such GPU
Device choose_device(const recipe::Run& run, const ranks::Place& place = {});

/// Where a run takes place, or where --dry-run plans it.
struct Placement {
  Device device;
  std::optional<GpuCard> plan_for = {};  // a plan's GPU; none = this machine's
};

/// As choose_device. With `dry_run` the GPU may be one that this machine does not have: that of
/// run.plan_for, and where there is no GPU, but one is asked for (run.device, run.gpu_memory_limit,
/// model.offload, cache.place), a card of that limit or of 80 GiB. auto then chooses as if it were
/// here.
/// errors   kind device: no such GPU; none for keys in host memory
Placement choose_placement(const recipe::Run& run, const recipe::Offload& offload, bool dry_run,
                           std::span<const recipe::Cache> caches = {},
                           const ranks::Place& place = {});

/// Memory that a run may use on the CPU and on its GPU: the recipe's limits, or the free memory.
struct MemoryLimits {
  /// Of the host of a GPU that this machine does not have, where the recipe says nothing of it.
  static constexpr size_t kUnknown = std::numeric_limits<size_t>::max();

  size_t host = 0;
  Device gpu = {};  // the CPU where the run has none
  size_t gpu_bytes = 0;
  /// Of the card, without a limit: free, or held by this process' context as it is.
  size_t gpu_free = 0, gpu_total = 0;
  bool gpu_limited = false;              // gpu_bytes come from the recipe, not from free memory
  std::optional<GpuCard> plan_for = {};  // the card, where it is not this machine's

  bool on_gpu() const { return gpu.kind == Device::Kind::cuda; }
  /// errors   kind memory, as MemoryPlan::check_fits, or that other processes hold what the plan
  ///          needs
  void check(const MemoryPlan& plan) const;
  bool fits(const MemoryPlan& plan) const;
};
MemoryLimits memory_limits(const recipe::Run& run, const Placement& place);

/// How many GPUs run.device names; 0: it leaves the number open.
int gpus_named(const std::string& device);

}  // namespace tandem::decode
