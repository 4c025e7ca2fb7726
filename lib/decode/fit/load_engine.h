#pragma once
#include <functional>
#include <memory>

#include "decode/engine.h"
#include "decode/fit/placement.h"
#include "decode/run_context.h"

namespace tandem::decode {

/// Checks that a run's plan fits and shows it by group if verbose, buffer by buffer if debug.
/// errors   kind memory
void admit_plan(const RunContext& run, const MemoryPlan& plan, const MemoryLimits& limits);

/// An engine of a run whose plan has been admitted; shows progress while it loads; its
/// loading and forwards end when a signal asks for it.
/// plan     of the whole run
/// queue    of another engine, to work in one order with it on a GPU
/// errors   kind memory, input, interrupted
std::unique_ptr<Engine> load_engine(const RunContext& run, ModelFiles files, EngineSpec spec,
                                    const MemoryPlan& plan,
                                    std::shared_ptr<cuda::Queue> queue = nullptr);

/// Says so where keys in host memory could not be pinned.
void warn_unpinned(const RunContext& run, const Engine& engine);

/// The progress line of loading; called with the share of the weights that is loaded.
class LoadProgress {
 public:
  LoadProgress(const RunContext& run, const MemoryPlan& plan)
      : bytes_(static_cast<double>(plan.group_bytes("weights"))),
        line_(run.progress("load", bytes_, "B")) {}
  void operator()(double share) { line_->update(share * bytes_); }

 private:
  double bytes_;
  std::unique_ptr<ProgressLine> line_;
};

}  // namespace tandem::decode
