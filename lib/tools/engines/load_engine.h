#pragma once
#include <functional>
#include <memory>

#include "cli/context.h"
#include "cli/device.h"
#include "decode/engine.h"

namespace tandem::tools {

/// Checks that a run's plan fits and prints it at -v by group, at -vv buffer by buffer.
/// errors   kind memory
void admit_plan(cli::Context& cx, const MemoryPlan& plan, const cli::MemoryLimits& limits);

/// An engine of a run whose plan has been admitted; shows progress while it loads; its
/// loading and forwards end when a signal asks for it.
/// plan     of the whole run
/// queue    of another engine, to work in one order with it on a GPU
/// errors   kind memory, input, interrupted
std::unique_ptr<decode::Engine> load_engine(cli::Context& cx, decode::ModelFiles files,
                                            decode::EngineSpec spec, const MemoryPlan& plan,
                                            std::shared_ptr<cuda::Queue> queue = nullptr);

/// Says so where keys in host memory could not be pinned.
void warn_unpinned(cli::Context& cx, const decode::Engine& engine);

/// The progress line of loading; called with the share of the weights that is loaded.
class LoadProgress {
 public:
  LoadProgress(cli::Context& cx, const MemoryPlan& plan)
      : bytes_(static_cast<double>(plan.group_bytes("weights"))),
        line_(cx.terminal, "load", bytes_, "B") {}
  void operator()(double share) { line_.update(share * bytes_); }

 private:
  double bytes_;
  cli::Progress line_;
};

}  // namespace tandem::tools
