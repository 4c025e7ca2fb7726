#include "decode/fit/hosted.h"

#include <algorithm>

#include "model/spec/context.h"
#include "model/spec/work.h"
#include "ranks/group.h"
#include "recipe/scalar.h"

namespace tandem::decode {

namespace {

/// Each rank attends its heads, all in one way: the one that rank 0's rates speak for.
void choose_as_rank0(ranks::Group& group, machine::HostedPlan& plan) {
  struct Choice {
    recipe::Attend attend;
    recipe::IndexPlace index;
    double cpu_share;
  };
  const auto of = [](const machine::HostedOption& o) {
    return Choice{o.cache.attend, o.cache.index, o.cache.cpu_share};
  };
  const Choice chosen = group.agree(of(plan.chosen()));
  const auto same = std::ranges::find_if(plan.options, [&](const machine::HostedOption& o) {
    return o.cache.attend == chosen.attend && o.cache.index == chosen.index;
  });
  if (same == plan.options.end())
    throw recipe_error("cache.attend", "rank 0 chooses {}, which does not fit this rank's heads",
                       recipe::yaml_text(chosen.attend))
        .hint("set cache.attend in the recipe");
  std::rotate(plan.options.begin(), same, same + 1);
  plan.options.front().cache.cpu_share = chosen.cpu_share;
}

}  // namespace

std::optional<machine::HostedPlan> decide_hosted(
    const EngineSizer& sizer, const ModelFiles& files, const recipe::Cache& cache, int length,
    int batch,
    const std::function<MemoryPlan(const recipe::Cache& decided, const Savings&)>& plan_of) {
  if (!cache.is_hosted()) return {};
  const Placement& place = sizer.place();
  const machine::HostedRates rates = place.plan_for ? machine::assumed_rates(*place.plan_for)
                                                    : machine::measured_rates(place.device);
  const auto room_of = [&](const recipe::Cache& decided) -> machine::HostedRoom {
    try {
      const MemoryPlan plan = sizer.save_memory(
          files.config, [&](const Savings& savings) { return plan_of(decided, savings); });
      return {.fits = sizer.limits().fits(plan),
              .streamed_bytes = static_cast<double>(plan.group_bytes("weights", {}))};
    } catch (const Error& e) {
      // An index that this GPU cannot choose from is one that does not fit; the run itself says so
      // where no other way is left.
      if (e.kind() != ErrorKind::device) throw;
      return {.fits = false};
    }
  };
  const DType dtype = sizer.compute();
  machine::HostedPlan plan =
      machine::plan_hosted({.cache = cache,
                            .geometry = model::geometry_of(files.config, dtype),
                            .length = length,
                            .batch = batch,
                            .weight_bytes = model::step_bytes(files.config, dtype)},
                           rates, room_of);
  if (sizer.group()) choose_as_rank0(*sizer.group(), plan);
  return plan;
}

std::optional<machine::HostedPlan> decide_hosted(const EngineSizer& sizer, const ModelFiles& files,
                                                 EngineSpec& spec, int batch) {
  // Several that share hosted keys are refused when they are planned.
  if (spec.caches.size() != 1) return {};
  recipe::Cache& cache = spec.caches.front();
  const auto plan_of = [&](const recipe::Cache& decided, const Savings& savings) {
    EngineSpec with = spec;
    with.caches = {decided};
    with.savings = savings;
    return Engine::plan(files, with);
  };
  auto hosted = decide_hosted(sizer, files, cache, spec.max_tokens, batch, plan_of);
  if (hosted) cache = hosted->chosen().cache;
  return hosted;
}

}  // namespace tandem::decode
