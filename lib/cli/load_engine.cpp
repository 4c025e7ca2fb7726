#include "cli/load_engine.h"

#include <fmt/format.h>

#include "cli/plan_text.h"

namespace tandem::cli {

void admit_plan(Context& cx, const MemoryPlan& plan, size_t limit_bytes) {
  cx.verbose(memory_line(plan, limit_bytes));
  for (const PlanItem& item : plan.items())
    cx.debug(fmt::format("  {:>10}  {}{}", format_bytes(item.bytes), item.name,
                         item.lifetime == Lifetime::load ? " (until loaded)" : ""));
  plan.check_fits({}, limit_bytes);
}

std::unique_ptr<decode::Engine> load_engine(Context& cx, decode::ModelFiles files,
                                            decode::EngineSpec spec, const MemoryPlan& plan,
                                            size_t limit_bytes) {
  admit_plan(cx, plan, limit_bytes);
  spec.interrupted = [] { return interrupted() != 0; };
  LoadProgress progress(cx, plan);
  return std::make_unique<decode::Engine>(std::move(files), spec, std::ref(progress));
}

}  // namespace tandem::cli
