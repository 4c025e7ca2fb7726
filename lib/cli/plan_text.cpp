#include "cli/plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/parallel.h"
#include "decode/fit/rank_plan.h"
#include "kv/page_groups.h"
#include "kv/quantized/quantized_keys.h"
#include "machine/hardware.h"
#include "model/forward/transformer.h"
#include "model/spec/weight_formats.h"
#include "model/spec/work.h"
#include "tensor/arena.h"
#include "tensor/cuda.h"

namespace tandem::cli {

using Json = nlohmann::ordered_json;

namespace {

constexpr std::string_view kAdapterItems = "adapters/";

/// Bytes that a decode step reads at the end of the context, and multiply-adds of the prefill.
struct Cost {
  double weight_bytes = 0, kv_bytes = 0, prefill_flops = 0;
};

Cost cost_of(const PlanView& v) {
  const model::ModelConfig& c = v.files.config;
  const auto n = static_cast<double>(v.prompt_tokens);
  const DType dtype = v.spec.compute;
  Cost cost;
  const double matrices = model::step_params(c);
  cost.weight_bytes = model::step_bytes(c, dtype);
  const kv::Geometry g = model::geometry_of(c, dtype);
  const auto policy = kv::make_policy(
      v.spec.caches.front(), {.geometry = g, .max_tokens = static_cast<int>(v.context_tokens)});
  for (int layer = 0; layer < c.n_layers; ++layer)
    cost.kv_bytes += kv::token_bytes(v.spec.caches.front(), g, layer) *
                     policy->keys_read(layer, v.context_tokens).total * v.sequences;
  cost.prefill_flops = 2.0 * matrices * n + 4.0 * c.n_layers * double(c.q_dim()) * v.prompt_pairs;
  return cost;
}

/// Times that no run can beat.
struct Floors {
  double prefill_s = 0, decode_s = 0;
  std::string bound;  // of decoding
};

/// None while the rates are unknown.
std::optional<Floors> floors(const PlanView& v, const Cost& cost) {
  const double bytes = cost.weight_bytes + cost.kv_bytes;
  if (const auto& card = v.limits.plan_for; card && card->read_gbps > 0) {
    Floors f{.prefill_s = cost.prefill_flops / (card->bf16_tflops * 1e12),
             .decode_s = bytes / (card->read_gbps * 1e9),
             .bound = fmt::format("GPU memory, {:g} GB/s (data sheet)", card->read_gbps)};
    const double copy_s = decode::copy_seconds(decode::streamed_by(v.plan, v.limits).bytes, *card);
    if (copy_s <= f.decode_s) return f;
    f.decode_s = copy_s;
    f.bound = fmt::format("link to host memory, {:g} GB/s", card->link_gbps);
    return f;
  }
  if (v.limits.on_gpu()) return {};
  const auto ceilings = machine::known_ceilings(max_threads());
  if (!ceilings) return {};
  const double gemm = ceilings->gemm_gflops(v.spec.compute);
  return Floors{.prefill_s = cost.prefill_flops / (gemm * 1e9),
                .decode_s = bytes / (ceilings->mem_read_gbps * 1e9),
                .bound = fmt::format("host memory, {:.1f} GB/s measured", ceilings->mem_read_gbps)};
}

/// Of a run with keys in host memory, whose steps move bytes over three ways: lines for each, and
/// the prefill's floor.
std::string hosted_text(const PlanView& v, const Cost& cost) {
  const auto& card = v.limits.plan_for;
  std::string text = fmt::format("time     prefill of {} tokens ", v.prompt_tokens);
  if (card && card->bf16_tflops > 0)
    text += fmt::format("at least {}",
                        decode::duration(cost.prefill_flops / (card->bf16_tflops * 1e12)));
  else
    text += fmt::format("{:.3g} TFLOP", cost.prefill_flops * 1e-12);
  return text + '\n' + machine::hosted_lines(*v.hosted, v.plan, v.limits.gpu);
}

/// Floors of time, or the work alone while the rates are unknown.
std::string time_line(const PlanView& v) {
  const Cost cost = cost_of(v);
  if (v.hosted != nullptr) return hosted_text(v, cost);
  if (const auto f = floors(v, cost))
    return fmt::format(
        "time     prefill of {} tokens at least {}   decode at least {}/step at {} "
        "tokens (bound: {})\n",
        v.prompt_tokens, decode::duration(f->prefill_s), decode::duration(f->decode_s),
        v.context_tokens, f->bound);
  return fmt::format(
      "time     prefill of {} tokens {:.3g} TFLOP   decode reads {} per step at {} tokens (rates "
      "unknown until {})\n",
      v.prompt_tokens, cost.prefill_flops * 1e-12,
      format_bytes(static_cast<size_t>(cost.weight_bytes + cost.kv_bytes)), v.context_tokens,
      v.limits.plan_for ? "run.plan_for names a card" : "a run has measured this machine");
}

std::string params_text(const decode::ModelFiles& files) {
  const auto params = [](const model::ModelConfig& c) {
    const auto n = static_cast<double>(model::n_params(c));
    return n < 1e9 ? fmt::format("{:.3g} M", n * 1e-6) : fmt::format("{:.3g} B", n * 1e-9);
  };
  const std::string all = params(files.whole_config()) + " params";
  return files.shard.whole() ? all : fmt::format("{}, {} on this rank", all, params(files.config));
}

/// Named adapters, and what they take where the model computes.
std::string adapter_lines(const PlanView& v) {
  std::string text;
  if (!v.files.merged.empty())
    text = fmt::format("adapters {}, merged into the weights\n", fmt::join(v.files.merged, ", "));
  if (v.spec.adapters == decode::AdapterUse::none) return text;
  const bool mixed = v.spec.adapters == decode::AdapterUse::mix;
  text += fmt::format(
      "adapters {}, {}\n", v.files.adapters.size(),
      mixed ? "next to the weights, one per prompt" : "merged into the weights one at a time");
  for (const PlanItem& item : v.plan.items())
    if (std::string_view(item.name).starts_with(kAdapterItems))
      text += fmt::format("         {}  {}\n", item.name.substr(kAdapterItems.size()),
                          format_bytes(item.bytes));
  return text;
}

/// KV cache of layers with a window, which hold less than the others; 0 layers: none does.
struct WindowedKeys {
  size_t layers = 0, bytes = 0;
  size_t bytes_of_all = 0;  // if these layers kept all tokens
  int window = 0;
};
WindowedKeys windowed_keys(const PlanView& v) {
  WindowedKeys all;
  const kv::Geometry geometry = model::geometry_of(v.files.config, v.spec.compute);
  const auto groups = kv::page_groups(geometry, v.spec.max_tokens);
  for (const kv::PageGroup& group : std::span(groups).subspan(1)) {
    all.layers += group.layers.size();
    all.window = std::max(all.window, group.window);
  }
  for (const PlanItem& item : v.plan.items())
    if (std::string_view(item.name).starts_with("kv/window ")) all.bytes += item.bytes;
  all.bytes_of_all = static_cast<size_t>(static_cast<double>(all.layers) * geometry.token_bytes() *
                                         static_cast<double>(v.spec.total_tokens));
  return all;
}

decode::RankPlan ranks_of(const PlanView& v) {
  return decode::rank_plan(v.files, v.spec, v.sequences, v.limits);
}

Json adapters_json(const PlanView& v) {
  Json j = Json::object();
  if (!v.files.merged.empty()) j["merged"] = v.files.merged;
  if (v.spec.adapters == decode::AdapterUse::none) return j;
  j["use"] = v.spec.adapters == decode::AdapterUse::mix ? "mix" : "switch";
  for (const model::NamedAdapter& adapter : v.files.adapters) j["names"].push_back(adapter.name);
  for (const PlanItem& item : v.plan.items())
    if (std::string_view(item.name).starts_with(kAdapterItems))
      j["bytes"][item.name.substr(kAdapterItems.size())] = item.bytes;
  return j;
}

std::string plan_text(const PlanView& v) {
  const model::ModelConfig& c = v.files.config;
  const DType dtype = v.spec.compute;
  std::string text =
      fmt::format("model    {}  {}  {}  {} weights{}  context {} tokens\n", v.files.name,
                  c.architecture, params_text(v.files), model::formats_text(c, dtype),
                  dtype == DType::f32 ? " and KV cache" : "", c.max_context);
  text += decode::gpu_line(v.limits);
  // Another machine's host is not this one.
  if (v.limits.host != decode::MemoryLimits::kUnknown)
    text += fmt::format("{}   cpu  {} threads, {}  {} available\n",
                        v.limits.on_gpu() ? "host  " : "device", max_threads(),
                        isa_name(isa_in_use()), format_bytes(v.limits.host));
  text += ranks_of(v).lines();
  text += decode::memory_lines(v.plan, v.limits) + '\n';
  if (const WindowedKeys w = windowed_keys(v); w.layers > 0)
    text += fmt::format(
        "windows  {} of {} layers keep {} tokens of a sequence: {} of KV instead of {}\n", w.layers,
        c.n_layers, w.window, format_bytes(w.bytes), format_bytes(w.bytes_of_all));
  text += adapter_lines(v);
  decode::Savings saved = v.spec.savings;
  saved.n_streamed = 0;  // of which a line says more
  if (const std::string all = saved.text(c.n_layers); !all.empty())
    text += fmt::format("to fit   {}\n", all);
  text += time_line(v);
  for (const machine::HostedEngine& e : v.hosted_engines)
    text += fmt::format("engine   {}:\n{}", e.name,
                        machine::hosted_lines(e.hosted, e.plan, v.limits.gpu));
  if (!v.recipe_sha256.empty()) text += fmt::format("recipe   sha256 {}\n", v.recipe_sha256);
  return text;
}

Json plan_json(const PlanView& v) {
  Json j = {{"event", "plan"},
            {"model", v.files.name},
            {"dtype", dtype_name(v.spec.compute)},
            {"weights", model::formats_text(v.files.config, v.spec.compute)},
            {"prompt_tokens", v.prompt_tokens},
            {"context_tokens", v.context_tokens}};
  j.update(decode::memory_json(v.plan, v.limits));
  if (const WindowedKeys w = windowed_keys(v); w.layers > 0)
    j["windowed_kv"] = {{"layers", w.layers},
                        {"window", w.window},
                        {"bytes", w.bytes},
                        {"bytes_without_windows", w.bytes_of_all}};
  j["prompt_passes"] = v.spec.savings.prompt_passes;
  if (v.spec.adapters != decode::AdapterUse::none || !v.files.merged.empty())
    j["adapters"] = adapters_json(v);
  if (!v.files.shard.whole()) j["ranks"] = ranks_of(v).json();
  const Cost cost = cost_of(v);
  j["prefill_tflop"] = cost.prefill_flops * 1e-12;
  const auto f = floors(v, cost);
  if (v.hosted != nullptr) {
    j["hosted"] = machine::hosted_json(*v.hosted);
    if (f) j["prefill_ms_at_least"] = 1e3 * f->prefill_s;
  } else {
    j["decode_step_bytes"] = static_cast<size_t>(cost.weight_bytes + cost.kv_bytes);
  }
  for (const machine::HostedEngine& e : v.hosted_engines)
    j["hosted_engines"][e.name] = machine::hosted_json(e.hosted);
  if (f && v.hosted == nullptr)
    j.update({{"prefill_ms_at_least", 1e3 * f->prefill_s},
              {"decode_ms_at_least", 1e3 * f->decode_s},
              {"bound", f->bound}});
  if (!v.recipe_sha256.empty()) j["recipe_sha256"] = v.recipe_sha256;
  return j;
}

}  // namespace

void print_plan(Context& cx, const std::string& text, const Json& json, const MemoryPlan& plan,
                const decode::MemoryLimits& limits) {
  cx.out.write(cx.plans_as_json() ? json.dump() + '\n' : text);
  cx.out.flush();  // the plan first, then its problem
  limits.check(plan);
}

void print_plan(Context& cx, const PlanView& view) {
  print_plan(cx, plan_text(view), plan_json(view), view.plan, view.limits);
}

}  // namespace tandem::cli
