#include "decode/fit/memory_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "tensor/arena.h"
#include "tensor/cuda.h"

namespace tandem::decode {

using Json = nlohmann::ordered_json;

namespace {

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

}  // namespace

std::string duration(double seconds) {
  return seconds < 1.0 ? fmt::format("{:.1f} ms", seconds * 1e3) : fmt::format("{:.1f} s", seconds);
}

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

}  // namespace tandem::decode
