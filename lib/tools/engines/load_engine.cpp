#include "tools/engines/load_engine.h"

#include <fmt/format.h>

#include "cli/plan_text.h"

namespace tandem::tools {

namespace {

/// Of free memory that auto leaves alone: a plan counts bytes, but a GPU gives whole pages of 2
/// MiB, and code is loaded when it first runs. A limit that the recipe sets means the plan and
/// nothing else.
constexpr size_t kReserve = size_t{512} << 20;

}  // namespace

void check_offload(const recipe::Offload& offload, const model::ModelConfig& config,
                   Device device) {
  if (!offload.any()) return;
  if (device.kind != Device::Kind::cuda)
    throw recipe_error("model.offload",
                       "is {}, but the run is on the CPU, whose weights are all in host memory",
                       recipe::yaml_text(offload))
        .hint("leave it none, or choose a GPU with --device cuda");
  if (offload.layers > config.n_layers)
    throw recipe_error("model.offload", "is {} layers, the model has {}", offload.layers,
                       config.n_layers)
        .hint("auto keeps on the GPU what fits");
}

int layers_to_stream(const recipe::Offload& offload, const model::ModelConfig& config,
                     const cli::MemoryLimits& limits,
                     const std::function<MemoryPlan(int n_streamed)>& plan_of) {
  check_offload(offload, config, limits.gpu);
  if (!offload.automatic()) return offload.layers;
  const size_t reserve = limits.gpu_limited ? 0 : kReserve;
  int n = 0;
  while (n < config.n_layers && plan_of(n).peak(limits.gpu) + reserve > limits.gpu_bytes) ++n;
  return n;
}

void admit_plan(cli::Context& cx, const MemoryPlan& plan, const cli::MemoryLimits& limits) {
  cx.verbose(cli::memory_lines(plan, limits));
  for (const PlanItem& item : plan.items())
    cx.debug(fmt::format("  {:>10}  {}{}{}", format_bytes(item.bytes), item.name,
                         item.device.kind == Device::Kind::cpu ? "" : ", " + item.device.name(),
                         item.lifetime == Lifetime::load ? " (until loaded)" : ""));
  limits.check(plan);
}

std::unique_ptr<decode::Engine> load_engine(cli::Context& cx, decode::ModelFiles files,
                                            decode::EngineSpec spec, const MemoryPlan& plan,
                                            const cli::MemoryLimits& limits) {
  admit_plan(cx, plan, limits);
  return load_admitted(cx, std::move(files), std::move(spec), plan);
}

std::unique_ptr<decode::Engine> load_admitted(cli::Context& cx, decode::ModelFiles files,
                                              decode::EngineSpec spec, const MemoryPlan& plan,
                                              std::shared_ptr<cuda::Queue> queue) {
  spec.interrupted = [] { return cli::interrupted() != 0; };
  LoadProgress progress(cx, plan);
  return std::make_unique<decode::Engine>(std::move(files), spec, std::ref(progress),
                                          std::move(queue));
}

}  // namespace tandem::tools
