#pragma once
#include <memory>

#include "cli/context.h"
#include "cli/device.h"
#include "decode/engine.h"

namespace tandem::cli {

/// An engine that loads behind a progress line, and whose loading and forwards end when a signal
/// asks for it. -v tells the plan by group, -vv buffer by buffer.
/// plan     the engine's, and what else the run will hold
/// errors   kind memory (the plan exceeds the limit), input, interrupted
std::unique_ptr<decode::Engine> load_engine(Context& cx, decode::ModelFiles files,
                                            decode::EngineSpec spec, const MemoryPlan& plan,
                                            const MemoryLimits& limits);

/// Checks that a plan fits and tells it at -v and -vv.
/// errors   kind memory
void admit_plan(Context& cx, const MemoryPlan& plan, const MemoryLimits& limits);

/// As load_engine, for a run whose plan has been admitted: one of several engines.
/// errors   kind memory, input, interrupted
std::unique_ptr<decode::Engine> load_admitted(Context& cx, decode::ModelFiles files,
                                              decode::EngineSpec spec, const MemoryPlan& plan);

/// The progress line of loading; called with the share of the weights that is loaded.
class LoadProgress {
 public:
  LoadProgress(Context& cx, const MemoryPlan& plan, Device device)
      : bytes_(static_cast<double>(plan.group_bytes("weights", device))),
        line_(cx.terminal, "load", bytes_, "B") {}
  void operator()(double share) { line_.update(share * bytes_); }

 private:
  double bytes_;
  Progress line_;
};

}  // namespace tandem::cli
