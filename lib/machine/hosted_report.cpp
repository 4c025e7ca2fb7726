#include "machine/hosted_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "kv/policy.h"
#include "recipe/fields.h"

namespace tandem::machine {
namespace {

using recipe::Attend;
using Json = nlohmann::ordered_json;

bool has_index(const HostedOption& option) { return !kv::needs_of(option.cache).reads_all; }

std::string index_place(const HostedOption& o) {
  return o.cache.chooses_on_cpu() ? "host memory" : "GPU memory";
}

/// A way that was not chosen: `cpu (index in host memory) 19.8`.
std::string other_way(const HostedOption& o, const HostedOption& chosen) {
  std::string text = recipe::yaml_text(o.cache.attend);
  if (has_index(o) && o.cache.index != chosen.cache.index)
    text += fmt::format(" (index in {})", index_place(o));
  text += fmt::format(" {:.1f}", o.time.step_ms);
  return o.fits ? text : text + " (does not fit)";
}

std::string who(const HostedOption& o) {
  std::string text = recipe::yaml_text(o.cache.attend);
  if (o.cache.attend == Attend::both)
    text += fmt::format(" (CPU {:.0f} %, GPU {:.0f} % over the link)", 100 * o.cache.cpu_share,
                        100 * (1 - o.cache.cpu_share));
  if (has_index(o)) text += fmt::format(", index in {}", index_place(o));
  return text;
}

std::string gigabytes(double bytes) {
  return bytes < 1e9 ? fmt::format("{:.3g} MB", bytes * 1e-6)
                     : fmt::format("{:.3g} GB", bytes * 1e-9);
}

/// Bytes of items on a device whose names begin so.
size_t bytes_of(const MemoryPlan& memory, Device device, const std::string& prefix) {
  size_t sum = 0;
  for (const PlanItem& item : memory.items())
    if (item.device == device && item.name.starts_with(prefix)) sum += item.bytes;
  return sum;
}

std::string place_line(const HostedPlan& p, const MemoryPlan& memory, Device gpu) {
  const auto text = [&](Device device, const char* prefix) {
    return format_bytes(bytes_of(memory, device, prefix));
  };
  return fmt::format(
      "kv       {} layers offloaded to host memory{}: {} of KV, {} of index\n         on {}: {} of "
      "resident KV, {}, {} of index\n",
      p.chosen().traffic.hosted_layers, p.chosen().cache.is_eight_bit() ? " in int8" : "",
      text({}, "kv/host"), text({}, "index/"), gpu.name(), text(gpu, "kv/near"),
      p.chosen().cache.streams_keys() ? text(gpu, "kv/ring") + " of staging ring"
                                      : text(gpu, "kv/prompt") + " of prefill staging",
      text(gpu, "index/"));
}

std::string time_line(const HostedPlan& p) {
  const HostedTime& t = p.chosen().time;
  const HostedRates& r = p.rates;
  std::string text = fmt::format(
      "step     {:.1f} ms, {:.3g} tokens/s, {} sequence{} at {} tokens: GPU {:.1f} ms", t.step_ms,
      1e3 * p.batch / t.step_ms, p.batch, p.batch == 1 ? "" : "s", p.length, t.gpu_ms);
  if (t.cpu_ms > 0) text += fmt::format(", CPU {:.1f}", t.cpu_ms);
  if (t.link_ms > 0) text += fmt::format(", link {:.1f}", t.link_ms);
  if (t.copy_ms > 0) text += fmt::format(", prefetch {:.1f}", t.copy_ms);
  if (t.turn_ms > 0) text += fmt::format(", synchronization {:.1f}", t.turn_ms);
  return text + fmt::format(
                    "\nrates    GPU memory {:.0f} GB/s, link {:.3g} GB/s ({})\n         host "
                    "memory {:.3g} GB/s, rows of 256 bytes {:.3g} GB/s, {:.3g} G scores/s from key "
                    "codes ({})\n",
                    r.gpu_gbps, r.link_gbps, r.gpu_source, r.dram_gbps, r.dram_rows_gbps,
                    r.code_gscores, r.host_source);
}

Json option_json(const HostedOption& o) {
  Json j = {{"attend", recipe::yaml_text(o.cache.attend)}};
  if (has_index(o)) j["index"] = o.cache.chooses_on_cpu() ? "host" : "device";
  if (o.cache.attend == Attend::both) j["cpu_share"] = o.cache.cpu_share;
  j["step_ms"] = o.time.step_ms;
  j["fits"] = o.fits;
  return j;
}

}  // namespace

std::string hosted_choice(const HostedPlan& plan) {
  const HostedOption& o = plan.chosen();
  std::string text = fmt::format("{}, {:.1f} ms per step", who(o), o.time.step_ms);
  if (plan.options.size() == 1) return text + ", the only option in this recipe";
  for (size_t i = 1; i < plan.options.size(); ++i)
    text += (i == 1 ? ", others: " : ", ") + other_way(plan.options[i], o);
  return text;
}

std::string hosted_lines(const HostedPlan& plan, const MemoryPlan& memory, Device gpu) {
  const kv::StepTraffic& t = plan.chosen().traffic;
  return place_line(plan, memory, gpu) + "attend   " + hosted_choice(plan) + '\n' +
         fmt::format(
             "bytes    per token: {} of GPU memory, {} of host memory by the CPU, {} over the link "
             "({:.2f} % of the offloaded KV, summed over query heads)\n",
             gigabytes(plan.gpu_bytes() / plan.batch), gigabytes(t.cpu() / plan.batch),
             gigabytes(plan.link_bytes() / plan.batch), 100 * t.share()) +
         time_line(plan);
}

Json hosted_json(const HostedPlan& plan) {
  const HostedOption& o = plan.chosen();
  const kv::StepTraffic& t = o.traffic;
  const HostedRates& r = plan.rates;
  Json j = option_json(o);
  const double n = plan.batch;
  j.update({{"batch", plan.batch},
            {"context_tokens", plan.length},
            {"layers", t.hosted_layers},
            {"host_dtype", recipe::yaml_text(o.cache.host_dtype)},
            {"key_bytes", t.key_bytes},
            {"keys_read_frac", t.share()},
            {"gpu_bytes_step", plan.gpu_bytes()},
            {"dram_bytes_step", t.cpu()},
            {"link_bytes_step", plan.link_bytes()},
            {"gpu_bytes_token", plan.gpu_bytes() / n},
            {"dram_bytes_token", t.cpu() / n},
            {"link_bytes_token", plan.link_bytes() / n},
            {"tokens_s", 1e3 * n / o.time.step_ms},
            {"gpu_ms", o.time.gpu_ms},
            {"cpu_ms", o.time.cpu_ms},
            {"link_ms", o.time.link_ms},
            {"copy_ms", o.time.copy_ms},
            {"turn_ms", o.time.turn_ms},
            {"rates",
             {{"gpu_gbps", r.gpu_gbps},
              {"gpu_index_share", r.gpu_index_share},
              {"link_gbps", r.link_gbps},
              {"link_row_share", r.link_row_share},
              {"dram_gbps", r.dram_gbps},
              {"dram_rows_gbps", r.dram_rows_gbps},
              {"dram_shared", r.dram_shared},
              {"code_gscores", r.code_gscores},
              {"turn_us", r.turn_us},
              {"choose_us", r.choose_us},
              {"gpu_source", r.gpu_source},
              {"host_source", r.host_source}}}});
  Json& ways = j["ways"] = Json::array();
  for (const HostedOption& option : plan.options) ways.push_back(option_json(option));
  return j;
}

}  // namespace tandem::machine
