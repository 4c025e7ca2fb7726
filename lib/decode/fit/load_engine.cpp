#include "decode/fit/load_engine.h"

#include <fmt/format.h>

#include "decode/fit/memory_text.h"
#include "model/spec/weight_formats.h"

namespace tandem::decode {

void admit_plan(const RunContext& run, const MemoryPlan& plan, const MemoryLimits& limits) {
  run.verbose(memory_lines(plan, limits));
  for (const PlanItem& item : plan.items())
    run.debug(fmt::format("  {:>10}  {}{}{}", format_bytes(item.bytes), item.name,
                          item.device.kind == Device::Kind::cpu ? "" : ", " + item.device.name(),
                          item.lifetime == Lifetime::load ? " (until loaded)" : ""));
  limits.check(plan);
}

std::unique_ptr<Engine> load_engine(const RunContext& run, ModelFiles files, EngineSpec spec,
                                    const MemoryPlan& plan, std::shared_ptr<cuda::Queue> queue) {
  // Ranks load for unlike times: a signal ends the loading of this one, and with it the run.
  const auto loaded = std::make_shared<bool>(false);
  spec.interrupted = [&run, loaded] { return *loaded ? run.is_interrupted() : run.signalled(); };
  LoadProgress progress(run, plan);
  auto engine =
      std::make_unique<Engine>(std::move(files), spec, std::ref(progress), std::move(queue));
  *loaded = true;
  if (const std::string_view factors = engine->rope_factors(); !factors.empty())
    run.note(
        fmt::format("RoPE     {} factors for all positions: sequences of up to {} tokens, the "
                    "original context is "
                    "{}",
                    factors, spec.longest > 0 ? spec.longest : spec.max_tokens,
                    engine->files().config.ropes.front().scaling.original_context));
  if (engine->files().config.formats && engine->spec().adapters == AdapterUse::switched)
    run.note("weights  in memory as numbers, since adapters are written into them");
  else if (engine->files().config.formats && !engine->spec().sparse.empty())
    run.note("weights  of FFNs in memory as numbers, since their neurons are read one by one");
  warn_unpinned(run, *engine);
  return engine;
}

void warn_unpinned(const RunContext& run, const Engine& engine) {
  if (const std::string why = engine.cache().residence().facts().why_unpinned; !why.empty())
    run.warn(fmt::format(
        "cache.place: offloaded KV or its index is not pinned ({}), so copies to and from the GPU "
        "are staged and slower. Raise the limit on locked memory (ulimit -l, or the container's)",
        why));
}

}  // namespace tandem::decode
