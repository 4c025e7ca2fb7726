#include "cli/load_engine.h"

#include <fmt/format.h>

#include "cli/plan_text.h"

namespace tandem::cli {

void admit_plan(Context& cx, const MemoryPlan& plan, const MemoryLimits& limits) {
  cx.verbose(memory_lines(plan, limits));
  for (const PlanItem& item : plan.items())
    cx.debug(fmt::format("  {:>10}  {}{}{}", format_bytes(item.bytes), item.name,
                         item.device.kind == Device::Kind::cpu ? "" : ", " + item.device.name(),
                         item.lifetime == Lifetime::load ? " (until loaded)" : ""));
  limits.check(plan);
}

std::unique_ptr<decode::Engine> load_engine(Context& cx, decode::ModelFiles files,
                                            decode::EngineSpec spec, const MemoryPlan& plan,
                                            const MemoryLimits& limits) {
  admit_plan(cx, plan, limits);
  return load_admitted(cx, std::move(files), std::move(spec), plan);
}

std::unique_ptr<decode::Engine> load_admitted(Context& cx, decode::ModelFiles files,
                                              decode::EngineSpec spec, const MemoryPlan& plan) {
  spec.interrupted = [] { return interrupted() != 0; };
  LoadProgress progress(cx, plan, spec.device);
  return std::make_unique<decode::Engine>(std::move(files), spec, std::ref(progress));
}

}  // namespace tandem::cli
