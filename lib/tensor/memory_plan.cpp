#include "tensor/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem {

namespace {

std::string group_of(const std::string& name) { return name.substr(0, name.find('/')); }

}  // namespace

void MemoryPlan::add(std::string name, size_t bytes, Device device, Lifetime lifetime) {
  if (bytes == 0) return;
  TANDEM_CHECK(find(name) == nullptr, "buffer '{}' planned twice", name);
  items_.push_back({std::move(name), bytes, device, lifetime});
}

const PlanItem* MemoryPlan::find(const std::string& name) const {
  const auto it = std::find_if(items_.begin(), items_.end(),
                               [&](const PlanItem& item) { return item.name == name; });
  return it == items_.end() ? nullptr : &*it;
}

size_t MemoryPlan::peak(Device device) const {
  size_t run = 0, weights = 0, load = 0;
  for (const PlanItem& item : items_) {
    if (item.device != device) continue;
    const std::string group = group_of(item.name);
    if (item.lifetime == Lifetime::load) load += item.bytes;
    if (item.lifetime == Lifetime::run) run += item.bytes;
    if (item.lifetime == Lifetime::run &&
        (group == "weights" || group == "embedding" || group == "process"))
      weights += item.bytes;
  }
  return std::max(run, weights + load);
}

size_t MemoryPlan::group_bytes(const std::string& group, Device device) const {
  size_t sum = 0;
  for (const PlanItem& item : items_)
    if (item.device == device && group_of(item.name) == group) sum += item.bytes;
  return sum;
}

size_t MemoryPlan::group_bytes(const std::string& group) const {
  size_t sum = 0;
  for (const PlanItem& item : items_)
    if (group_of(item.name) == group) sum += item.bytes;
  return sum;
}

std::vector<std::string> MemoryPlan::groups() const {
  std::vector<std::string> names;
  for (const PlanItem& item : items_)
    if (const std::string g = group_of(item.name);
        std::find(names.begin(), names.end(), g) == names.end())
      names.push_back(g);
  return names;
}

std::string MemoryPlan::parts(Device device) const {
  std::string text;
  for (const std::string& group : groups())
    if (const size_t bytes = group_bytes(group, device); bytes > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", group, format_bytes(bytes));
  return text;
}

void MemoryPlan::check_fits(Device device, size_t limit_bytes) const {
  const size_t needed = peak(device);
  if (needed <= limit_bytes) return;
  throw make_error(ErrorKind::memory, device.name(), "needs {} ({}), {} available",
                   format_bytes(needed), parts(device), format_bytes(limit_bytes))
      .hint(std::string(
                "lower run.context or run.batch, choose a smaller model or cache.kind: streaming, "
                "or raise run.") +
            (device.kind == Device::Kind::cpu ? "host_memory_limit" : "gpu_memory_limit"));
}

std::string format_bytes(size_t bytes) {
  const double b = static_cast<double>(bytes);
  if (b >= 0x1p30) return fmt::format("{:.2f} GiB", b / 0x1p30);
  if (b >= 0x1p20) return fmt::format("{:.1f} MiB", b / 0x1p20);
  if (b >= 0x1p10) return fmt::format("{:.1f} KiB", b / 0x1p10);
  return fmt::format("{} B", bytes);
}

}  // namespace tandem
