#pragma once
#include <functional>
#include <memory>

#include "cli/context.h"
#include "cli/device.h"
#include "decode/engine.h"

namespace tandem::tools {

/// An engine that loads behind a progress line, and whose loading and forwards end when a signal
/// asks for it. -v tells the plan by group, -vv buffer by buffer.
/// plan     the engine's, and what else the run will hold
/// errors   kind memory (the plan exceeds the limit), input, interrupted
std::unique_ptr<decode::Engine> load_engine(cli::Context& cx, decode::ModelFiles files,
                                            decode::EngineSpec spec, const MemoryPlan& plan,
                                            const cli::MemoryLimits& limits);

/// Checks that a plan fits and tells it at -v and -vv.
/// errors   kind memory
void admit_plan(cli::Context& cx, const MemoryPlan& plan, const cli::MemoryLimits& limits);

/// As load_engine, for a run whose plan has been admitted: one of several engines.
/// queue    of another engine, to work in one order with it on a GPU
/// errors   kind memory, input, interrupted
std::unique_ptr<decode::Engine> load_admitted(cli::Context& cx, decode::ModelFiles files,
                                              decode::EngineSpec spec, const MemoryPlan& plan,
                                              std::shared_ptr<cuda::Queue> queue = nullptr);

/// Refuses a model.offload that a run cannot follow.
/// errors   kind recipe: layers in host memory asked for on the CPU, or more than there are
void check_offload(const recipe::Offload& offload, const model::ModelConfig& config, Device device);

/// How many layers a run keeps in host memory, as model.offload says. auto: the fewest with which
/// it fits on the GPU, all where it never does.
/// plan_of  the whole run with so many
/// errors   as check_offload
int layers_to_stream(const recipe::Offload& offload, const model::ModelConfig& config,
                     const cli::MemoryLimits& limits,
                     const std::function<MemoryPlan(int n_streamed)>& plan_of);

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
