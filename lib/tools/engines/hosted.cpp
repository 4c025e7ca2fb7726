#include "tools/engines/hosted.h"

#include "model/context.h"
#include "model/work.h"

namespace tandem::tools {

std::optional<bench::HostedPlan> decide_hosted(
    const EngineSizer& sizer, const decode::ModelFiles& files, const recipe::Cache& cache,
    int length, int batch,
    const std::function<MemoryPlan(const recipe::Cache& decided, const decode::Savings&)>&
        plan_of) {
  if (!cache.is_hosted()) return {};
  const cli::Placement& place = sizer.place();
  const bench::HostedRates rates =
      place.plan_for ? bench::assumed_rates(*place.plan_for) : bench::measured_rates(place.device);
  const auto room_of = [&](const recipe::Cache& decided) -> bench::HostedRoom {
    try {
      const MemoryPlan plan = sizer.save_memory(
          files.config, [&](const decode::Savings& savings) { return plan_of(decided, savings); });
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
  return bench::plan_hosted(
      {.cache = cache,
       .geometry = model::geometry_of(files.config, dtype),
       .length = length,
       .batch = batch,
       .weight_bytes = model::step_params(files.config) * static_cast<double>(dtype_bytes(dtype))},
      rates, room_of);
}

std::optional<bench::HostedPlan> decide_hosted(const EngineSizer& sizer,
                                               const decode::ModelFiles& files,
                                               decode::EngineSpec& spec, int batch) {
  // Several that share hosted keys are refused when they are planned.
  if (spec.caches.size() != 1) return {};
  recipe::Cache& cache = spec.caches.front();
  const auto plan_of = [&](const recipe::Cache& decided, const decode::Savings& savings) {
    decode::EngineSpec with = spec;
    with.caches = {decided};
    with.savings = savings;
    return decode::Engine::plan(files, with);
  };
  auto hosted = decide_hosted(sizer, files, cache, spec.max_tokens, batch, plan_of);
  if (hosted) cache = hosted->chosen().cache;
  return hosted;
}

}  // namespace tandem::tools
