#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "decode/fit/hosted.h"
#include "eval/panel.h"
#include "machine/hosted_report.h"

namespace tandem::eval {

/// The engines of policies that are judged together. One serves all policies whose keys lie where
/// the model runs. A policy with keys in host memory or with other weights has a separate one.
class PolicyEngines {
 public:
  /// Sizes of an engine that reads by these policies.
  using SpecOf = std::function<decode::EngineSpec(const std::vector<NamedPolicy>&)>;

  /// Decides where keys in host memory are attended, and how many layers are streamed.
  /// policies  full attention first
  /// batch     sequences of a step
  /// errors    kind recipe, device, memory (no room to measure rates)
  PolicyEngines(const decode::EngineSizer& sizer, const decode::ModelFiles& files,
                const std::vector<NamedPolicy>& policies, const SpecOf& spec_of, int batch);

  /// Of all engines; names of the others' buffers begin with their policy's.
  const MemoryPlan& plan() const { return plan_; }
  /// The same with all savings that the recipe allows: more texts at once pay for their copies.
  MemoryPlan smallest_plan(const decode::ModelFiles& files) const;
  const decode::EngineSpec& first() const { return parts_.front().spec; }
  /// Of each policy whose keys are in host memory: who attends them, and the plan of its engine.
  std::vector<machine::HostedEngine> hosted(const decode::ModelFiles& files) const;

  /// errors   kind memory, input, interrupted
  void load(const decode::RunContext& run);
  /// Of loaded engines.
  Panel panel() const;

 private:
  struct Part {
    std::vector<int> policies;
    std::string name;  // of its policy, before its buffers' names; empty: of the first
    decode::EngineSpec spec;
    std::optional<machine::HostedPlan> hosted = {};
    std::optional<decode::ModelFiles> files = {};  // if its weights differ, until they are loaded
    std::unique_ptr<decode::Engine> engine = nullptr;
  };
  MemoryPlan plan_of(const decode::ModelFiles& files, const decode::Savings& savings) const;

  const decode::EngineSizer* sizer_;
  std::vector<Part> parts_;
  MemoryPlan plan_;
};

}  // namespace tandem::eval
