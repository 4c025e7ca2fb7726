#include "cli/plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/parallel.h"
#include "cli/rank_plan.h"
#include "kv/page_groups.h"
#include "machine/hardware.h"
#include "machine/hosted_report.h"
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
    cost.kv_bytes +=
        g.token_bytes() * policy->keys_read(layer, v.context_tokens).total * v.sequences;
  cost.prefill_flops = 2.0 * matrices * n + 4.0 * c.n_layers * double(c.q_dim()) * v.prompt_pairs;
  return cost;
}

std::string duration(double seconds) {
  return seconds < 1.0 ? fmt::format("{:.1f} ms", seconds * 1e3) : fmt::format("{:.1f} s", seconds);
}

/// Bytes of layers in host memory, or of parts of them, which forwards of all weights copy to the
/// GPU, and how many layers.
struct Streamed {
  size_t layers = 0, bytes = 0;
  bool divided = false;  // drafts copy less
};
Streamed streamed_by(const MemoryPlan& plan, const MemoryLimits& limits) {
  if (!limits.on_gpu()) return {};
  constexpr std::string_view kLayers = "weights/layers.", kRest = ".rest pinned";
  Streamed s;
  std::set<std::string_view> layers;
  for (const PlanItem& item : plan.items()) {
    const std::string_view name = item.name;
    if (item.device != Device{} || !name.starts_with(kLayers)) continue;
    layers.insert(name.substr(0, name.find('.', kLayers.size())));
    s.divided = s.divided || name.ends_with(kRest);
  }
  s.layers = layers.size();
  s.bytes = s.layers > 0 ? plan.group_bytes("weights", {}) : 0;
  return s;
}

double copy_seconds(size_t bytes, const GpuCard& card) {
  return static_cast<double>(bytes) / (card.link_gbps * 1e9);
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
    const double copy_s = copy_seconds(streamed_by(v.plan, v.limits).bytes, *card);
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
    text += fmt::format("at least {}", duration(cost.prefill_flops / (card->bf16_tflops * 1e12)));
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
        v.prompt_tokens, duration(f->prefill_s), duration(f->decode_s), v.context_tokens, f->bound);
  return fmt::format(
      "time     prefill of {} tokens {:.3g} TFLOP   decode reads {} per step at {} tokens (rates "
      "unknown until {})\n",
      v.prompt_tokens, cost.prefill_flops * 1e-12,
      format_bytes(static_cast<size_t>(cost.weight_bytes + cost.kv_bytes)), v.context_tokens,
      v.limits.plan_for ? "run.plan_for names a card" : "a run has measured this machine");
}

std::string gpu_name(const MemoryLimits& limits) {
  return limits.plan_for ? std::string(limits.plan_for->title)
                         : cuda::device_info(limits.gpu.index).name;
}

/// The verdict on a device's memory.
std::string verdict(size_t peak, size_t limit_bytes) {
  if (limit_bytes != MemoryLimits::kUnknown) return peak <= limit_bytes ? "fits" : "does not fit";
  const size_t here = available_host_bytes() + resident_bytes();
  return peak <= here ? "fits on this machine too"
                      : fmt::format("more than the {} of this machine", format_bytes(here));
}

std::string params_text(const decode::ModelFiles& files) {
  const auto params = [](const model::ModelConfig& c) {
    const auto n = static_cast<double>(model::n_params(c));
    return n < 1e9 ? fmt::format("{:.3g} M", n * 1e-6) : fmt::format("{:.3g} B", n * 1e-9);
  };
  const std::string all = params(files.whole_config()) + " params";
  return files.shard.whole() ? all : fmt::format("{}, {} on this rank", all, params(files.config));
}

}  // namespace

std::string gpu_line(const MemoryLimits& limits) {
  if (!limits.on_gpu()) return {};
  std::string text = fmt::format("device   {}  {}  {} available", limits.gpu.name(),
                                 gpu_name(limits), format_bytes(limits.gpu_bytes));
  if (const auto& card = limits.plan_for)
    text += fmt::format(" (not this machine, run.plan_for{})",
                        card->name.empty() ? " can name a card" : fmt::format(": {}", card->name));
  return text + '\n';
}

std::string planned_device(const MemoryLimits& limits) {
  if (!limits.plan_for) return limits.gpu.name();
  const std::string_view name = limits.plan_for->name;
  return fmt::format("{}, not this machine", name.empty() ? limits.plan_for->title : name);
}

std::string memory_lines(const MemoryPlan& plan, const MemoryLimits& limits) {
  const auto line = [&](Device device, size_t limit_bytes) {
    std::string groups;
    for (const std::string& group : plan.groups())
      if (const size_t bytes = plan.group_bytes(group, device); bytes > 0)
        groups += fmt::format("{} {}  ", group, format_bytes(bytes));
    const size_t peak = plan.peak(device);
    return fmt::format("memory   {}  {}peak {}  {}", device.name(), groups, format_bytes(peak),
                       verdict(peak, limit_bytes));
  };
  std::string text = line({}, limits.host);
  if (!limits.on_gpu()) return text;
  text += '\n' + line(limits.gpu, limits.gpu_bytes);
  const Streamed streamed = streamed_by(plan, limits);
  if (streamed.layers == 0) return text;
  text += fmt::format("\noffload  {}{} layers in host memory, {} copied to {} in every {}",
                      streamed.divided ? "parts of " : "", streamed.layers,
                      format_bytes(streamed.bytes), limits.gpu.name(),
                      streamed.divided ? "verification" : "forward");
  if (const auto& card = limits.plan_for; card && card->link_gbps > 0)
    text += fmt::format(", at least {} at {:g} GB/s", duration(copy_seconds(streamed.bytes, *card)),
                        card->link_gbps);
  return text;
}

Json memory_json(const MemoryPlan& plan, const MemoryLimits& limits) {
  Json j;
  if (limits.on_gpu()) {
    const auto& card = limits.plan_for;
    Json& gpu = j["gpu"];
    gpu = {{"device", limits.gpu.name()}, {"name", gpu_name(limits)}, {"this_machine", !card}};
    if (card && !card->name.empty())
      gpu.update(
          {{"plan_for", card->name},
           {"capability", fmt::format("{}.{}", card->capability / 10, card->capability % 10)},
           {"multiprocessors", card->multiprocessors},
           {"block_shared_bytes", card->block_shared_bytes},
           {"read_gbps", card->read_gbps},
           {"bf16_tflops", card->bf16_tflops},
           {"link_gbps", card->link_gbps}});
  }
  const auto add = [&](Device device, size_t limit_bytes) {
    Json& memory = j["memory"][device.name()];
    for (const std::string& group : plan.groups())
      if (const size_t bytes = plan.group_bytes(group, device); bytes > 0) memory[group] = bytes;
    memory["planned_peak"] = plan.peak(device);
    if (limit_bytes != MemoryLimits::kUnknown) memory["available"] = limit_bytes;
  };
  add({}, limits.host);
  if (limits.on_gpu()) add(limits.gpu, limits.gpu_bytes);
  if (const Streamed s = streamed_by(plan, limits); s.layers > 0) j["layers_streamed"] = s.layers;
  j["fits"] = limits.fits(plan);
  return j;
}

namespace {

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

RankPlan ranks_of(const PlanView& v) { return rank_plan(v.files, v.spec, v.sequences, v.limits); }

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
  text += gpu_line(v.limits);
  // Another machine's host is not this one.
  if (v.limits.host != MemoryLimits::kUnknown)
    text += fmt::format("{}   cpu  {} threads, {}  {} available\n",
                        v.limits.on_gpu() ? "host  " : "device", max_threads(),
                        isa_name(isa_in_use()), format_bytes(v.limits.host));
  text += ranks_of(v).lines();
  text += memory_lines(v.plan, v.limits) + '\n';
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
  for (const HostedEngine& e : v.hosted_engines)
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
  j.update(memory_json(v.plan, v.limits));
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
  for (const HostedEngine& e : v.hosted_engines)
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
                const MemoryLimits& limits) {
  cx.out.write(cx.plans_as_json() ? json.dump() + '\n' : text);
  cx.out.flush();  // the plan first, then its problem
  limits.check(plan);
}

void print_plan(Context& cx, const PlanView& view) {
  print_plan(cx, plan_text(view), plan_json(view), view.plan, view.limits);
}

}  // namespace tandem::cli
