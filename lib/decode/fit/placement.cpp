#include "decode/fit/placement.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "tensor/arena.h"
#include "tensor/cuda.h"
#include "tensor/driver_memory.h"

namespace tandem::decode {
namespace {

constexpr std::string_view kCuda = "cuda";

/// The numbers of cuda:N,M..; none of plain cuda. The recipe's check has seen to the form.
std::vector<int> gpu_indices(std::string_view device) {
  std::vector<int> all;
  const char *at = device.data() + std::min(device.size(), kCuda.size() + 1), *const end =
                                                                                  device.data() +
                                                                                  device.size();
  for (int index = 0; at < end; ++at) {
    at = std::from_chars(at, end, index).ptr;
    all.push_back(index);
  }
  return all;
}

/// The GPU of a rank, of those that the device names.
int gpu_index(std::string_view device, const ranks::Place& place) {
  const std::vector<int> all = gpu_indices(device);
  if (all.empty()) return place.alone() ? 0 : place.local_rank;
  if (all.size() == 1) return all[0];
  if (place.alone())
    throw Error(ErrorKind::device, "run.device", std::string(device) + ": this tool uses one GPU")
        .hint("name one, such as cuda:0");
  const auto local = static_cast<size_t>(place.local_rank);
  if (local >= all.size())
    throw make_error(ErrorKind::device, "run.device",
                     "{}: names {} GPUs, none of them for rank {} of this machine", device,
                     all.size(), place.local_rank)
        .hint("name a GPU for each rank, or leave it auto");
  return all[local];
}

bool asks_for_gpu(const recipe::Run& run, const recipe::Offload& offload) {
  return run.device.starts_with(kCuda) || run.gpu_memory_limit || offload.any();
}

/// The GPU of a plan that is not for one of this machine; its memory is what the recipe leaves it,
/// where the recipe says that alone.
GpuCard card_of(const recipe::Run& run) {
  constexpr size_t kUsual = size_t{80} << 30;
  if (run.plan_for) return *find_gpu_card(run.plan_for->value);
  return any_gpu_card(run.gpu_memory_limit
                          ? static_cast<size_t>(run.gpu_memory_limit->value) + kMostDriverBytes
                          : kUsual);
}

/// The device that run.device names on a machine of `n` GPUs.
Device choose_of(const recipe::Run& run, int n, const ranks::Place& place) {
  const std::string& wanted = run.device;
  if (wanted == "cpu") return {};
  if (wanted == "auto") {
    if (n == 0) return {};
    // A plan for a GPU that is not here asks nothing of one.
    if (cuda::device_count() > 0 && cuda::why_unfit(cuda::built_code(), cuda::facts_of(0)))
      return {};
  }
  TANDEM_CHECK(n > 0, "expected a GPU for device {}", wanted);  // Context::begin refuses that
  const int index = gpu_index(wanted == "auto" ? kCuda : wanted, place);
  if (index >= n)
    throw make_error(ErrorKind::device, "run.device",
                     "{}: this machine has only {} GPU{}, cuda:0{}", wanted, n, n == 1 ? "" : "s",
                     n == 1 ? "" : fmt::format(" to cuda:{}", n - 1));
  return {Device::Kind::cuda, index};
}

}  // namespace

Device choose_device(const recipe::Run& run, const ranks::Place& place) {
  return choose_of(run, cuda::device_count(), place);
}

Placement choose_placement(const recipe::Run& run, const recipe::Offload& offload, bool dry_run,
                           std::span<const recipe::Cache> caches, const ranks::Place& place) {
  const bool hosted = std::ranges::any_of(
      caches, [](const auto& c) { return c.place == recipe::CachePlace::host; });
  const bool elsewhere =
      dry_run &&
      (run.plan_for || ((hosted || asks_for_gpu(run, offload)) && cuda::device_count() == 0));
  if (!elsewhere) {
    const Device device = choose_device(run, place);
    if (hosted && device.kind != Device::Kind::cuda)
      throw Error(ErrorKind::device, "cache.place",
                  "is host, which needs a GPU, but this run is on the CPU")
          .hint("leave it device, choose a GPU with --device cuda, or plan for one with --dry-run");
    return {device};
  }
  // Some machine: of as many GPUs as it takes.
  const std::string& wanted = run.device;
  Placement p{choose_of(run, gpu_index(wanted == "auto" ? kCuda : wanted, place) + 1, place)};
  if (p.device.kind == Device::Kind::cuda) p.plan_for = card_of(run);
  return p;
}

MemoryLimits memory_limits(const recipe::Run& run, const Placement& place) {
  MemoryLimits limits{.plan_for = place.plan_for};
  limits.host = run.host_memory_limit ? static_cast<size_t>(run.host_memory_limit->value)
                : place.plan_for      ? MemoryLimits::kUnknown
                                      : available_host_bytes() + resident_bytes();
  if (place.device.kind != Device::Kind::cuda) return limits;
  limits.gpu = place.device;
  if (place.plan_for) {
    limits.gpu_total = place.plan_for->memory_bytes;
    limits.gpu_free = limits.gpu_total - kMostDriverBytes + driver_bytes(place.device, false);
  } else {
    const cuda::DeviceInfo info = cuda::device_info(place.device.index);
    limits.gpu_total = info.total_bytes;
    // What the driver holds already is in plans, too.
    const size_t held = info.total_bytes - info.free_bytes;
    limits.gpu_free = info.free_bytes + std::min(held, kMostDriverBytes);
  }
  limits.gpu_bytes = limits.gpu_free;
  // A limit makes the card look smaller, never larger.
  if (run.gpu_memory_limit && static_cast<size_t>(run.gpu_memory_limit->value) <= limits.gpu_free) {
    limits.gpu_bytes = static_cast<size_t>(run.gpu_memory_limit->value);
    limits.gpu_limited = true;
  }
  return limits;
}

namespace {

/// True if the KV cache of long texts is offloaded to host memory (kv/hosted/hosted_keys.h).
bool hosts_keys(const MemoryPlan& plan) {
  return std::ranges::any_of(plan.items(), [](const PlanItem& item) {
    return item.name.find("kv/host") != std::string::npos;
  });
}

}  // namespace

void MemoryLimits::check(const MemoryPlan& plan) const {
  if (const size_t needed = plan.peak({}); on_gpu() && needed > host && hosts_keys(plan))
    throw make_error(ErrorKind::memory, Device{}.name(), "needs {} ({}), {} available",
                     format_bytes(needed), plan.parts({}), format_bytes(host))
        .hint(plan.find("index/lsh.tables") != nullptr
                  ? "choose cache.kind hybrid, whose index is a sixth of the size, lower "
                    "run.context or run.batch, or raise run.host_memory_limit"
                  : "lower run.context or run.batch, or raise run.host_memory_limit");
  plan.check_fits({}, host);
  if (!on_gpu()) return;
  const size_t needed = plan.peak(gpu);
  const size_t buffers = needed - plan.group_bytes("process", gpu);
  const bool others_hold_it =
      !gpu_limited && needed > gpu_free && buffers + kMostDriverBytes <= gpu_total;
  if (!others_hold_it) return plan.check_fits(gpu, gpu_bytes);
  throw make_error(
      ErrorKind::memory, gpu.name(), "needs {} ({}), but other processes leave only {} of {} free",
      format_bytes(needed), plan.parts(gpu), format_bytes(gpu_free), format_bytes(gpu_total))
      .hint(
          "wait until they end (nvidia-smi lists them), use another GPU with --device cuda:N, or "
          "lower run.context or run.batch");
}

bool MemoryLimits::fits(const MemoryPlan& plan) const {
  return plan.peak({}) <= host && (!on_gpu() || plan.peak(gpu) <= gpu_bytes);
}

int gpus_named(const std::string& device) {
  return device.starts_with(kCuda) ? static_cast<int>(gpu_indices(device).size()) : 0;
}

}  // namespace tandem::decode
