#include "cli/plan_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/parallel.h"
#include "tensor/arena.h"
#include "tensor/cuda.h"

namespace tandem::cli {
namespace {

/// Bytes that a decode step reads at the end of the context, and multiply-adds of the prefill.
struct Cost {
  double weight_bytes = 0, kv_bytes = 0, prefill_flops = 0;
};

Cost cost_of(const PlanView& v) {
  const model::ModelConfig& c = v.files.config;
  const auto n = static_cast<double>(v.prompt_tokens);
  const DType dtype = v.spec.compute;
  Cost cost;
  const double matrices = static_cast<double>(model::n_params(c)) -
                          (c.tied_embeddings ? 0.0 : double(c.vocab_size) * c.dim);
  cost.weight_bytes = matrices * static_cast<double>(dtype_bytes(dtype));
  const kv::Geometry g = model::geometry_of(c, dtype);
  const auto policy = kv::make_policy(
      v.spec.caches.front(), {.geometry = g, .max_tokens = static_cast<int>(v.context_tokens)});
  for (int layer = 0; layer < c.n_layers; ++layer)
    cost.kv_bytes += g.token_bytes() * policy->keys_read(layer, v.context_tokens) * v.sequences;
  cost.prefill_flops = 2.0 * matrices * n + 4.0 * c.n_layers * double(c.q_dim()) * v.prompt_pairs;
  return cost;
}

std::string duration(double seconds) {
  return seconds < 1.0 ? fmt::format("{:.1f} ms", seconds * 1e3) : fmt::format("{:.1f} s", seconds);
}

/// Floors of time, or the work alone while this machine's rates are unknown.
std::string time_line(const PlanView& v, const std::optional<bench::Ceilings>& ceilings) {
  const Cost cost = cost_of(v);
  const double bytes = cost.weight_bytes + cost.kv_bytes;
  if (!ceilings)
    return fmt::format("time     prefill of {} tokens {:.3g} TFLOP   decode reads {} a step at {} "
                       "tokens (rates unknown until a run has measured this machine)\n",
                       v.prompt_tokens, cost.prefill_flops * 1e-12,
                       format_bytes(static_cast<size_t>(bytes)), v.context_tokens);
  const double gemm = ceilings->gemm_gflops(v.spec.compute);
  return fmt::format("time     prefill of {} tokens at least {}   decode at least {}/step at {} tokens "
                     "(bound: host memory, {:.1f} GB/s measured)\n",
                     v.prompt_tokens, duration(cost.prefill_flops / (gemm * 1e9)),
                     duration(bytes / (ceilings->mem_read_gbps * 1e9)), v.context_tokens,
                     ceilings->mem_read_gbps);
}

}  // namespace

std::string memory_lines(const MemoryPlan& plan, const MemoryLimits& limits) {
  const auto line = [&](Device device, size_t limit_bytes) {
    std::string groups;
    for (const std::string& group : plan.groups())
      if (const size_t bytes = plan.group_bytes(group, device); bytes > 0)
        groups += fmt::format("{} {}  ", group, format_bytes(bytes));
    const size_t peak = plan.peak(device);
    return fmt::format("memory   {}  {}peak {}  {}", device.name(), groups, format_bytes(peak),
                       peak <= limit_bytes ? "fits" : "does not fit");
  };
  std::string text = line({}, limits.host);
  if (limits.gpu.kind != Device::Kind::cuda) return text;
  text += '\n' + line(limits.gpu, limits.gpu_bytes);
  const auto streamed = std::ranges::count_if(plan.items(), [](const PlanItem& item) {
    return item.device == Device{} && item.name.starts_with("weights/");
  });
  if (streamed > 0)
    text += fmt::format("\noffload  {} layers in host memory, {} copied to {} in every forward",
                        streamed, format_bytes(plan.group_bytes("weights", {})), limits.gpu.name());
  return text;
}

std::string plan_text(const PlanView& v, const std::optional<bench::Ceilings>& ceilings) {
  const model::ModelConfig& c = v.files.config;
  const bool on_gpu = v.spec.device.kind == Device::Kind::cuda;
  const DType dtype = v.spec.compute;
  std::string text = fmt::format(
      "model    {}  {}  {:.3g} params  {} weights  context {} tokens\n", v.files.name,
      model::arch_name(c.arch), static_cast<double>(model::n_params(c)), dtype_name(dtype),
      c.max_context);
  if (on_gpu)
    text += fmt::format("device   {}  {}  {} available\n", v.spec.device.name(),
                        cuda::device_info(v.spec.device.index).name, format_bytes(v.limits.gpu_bytes));
  text += fmt::format("{}   cpu  {} threads, {}  {} available\n", on_gpu ? "host  " : "device",
                      max_threads(), isa_name(isa_in_use()), format_bytes(v.limits.host));
  text += memory_lines(v.plan, v.limits) + '\n' + time_line(v, on_gpu ? std::nullopt : ceilings);
  if (!v.recipe_sha256.empty()) text += fmt::format("recipe   sha256 {}\n", v.recipe_sha256);
  return text;
}

}  // namespace tandem::cli
