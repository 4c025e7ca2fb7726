#include "cli/device.h"

#include <algorithm>
#include <charconv>

#include "base/check.h"
#include "tensor/arena.h"
#include "tensor/cuda.h"

namespace tandem::cli {
namespace {

constexpr std::string_view kCuda = "cuda";

/// N of cuda:N; 0 for plain cuda. The recipe's check has seen to the form.
int gpu_index(std::string_view device) {
  int index = 0;
  if (device.size() > kCuda.size() + 1)
    std::from_chars(device.data() + kCuda.size() + 1, device.data() + device.size(), index);
  return index;
}

// Of a card's memory, at most what the driver and this process' own context take: not free, and
// nobody else's.
constexpr size_t kOwnContext = size_t{1} << 30;

bool has_gpu_code(recipe::CacheKind kind) {
  return kind == recipe::CacheKind::full || kind == recipe::CacheKind::streaming;
}

}  // namespace

Device choose_device(const recipe::Run& run, const recipe::Cache& cache) {
  const std::string& wanted = run.device;
  if (wanted == "cpu") return {};
  const int n = cuda::device_count();
  if (wanted == "auto") {
    if (n == 0 || !has_gpu_code(cache.kind)) return {};
    if (cuda::why_unfit(cuda::built_code(), cuda::facts_of(0))) return {};
    return {Device::Kind::cuda, 0};
  }
  TANDEM_CHECK(n > 0, "{} without a GPU", wanted);  // Context::begin refuses that
  if (wanted.find(',') != std::string::npos)
    throw Error(ErrorKind::device, "run.device", wanted + ": a run uses one GPU so far")
        .hint("name one, such as cuda:0");
  const int index = gpu_index(wanted);
  if (index >= n)
    throw Error::make(ErrorKind::device, "run.device", "{}: there {} {} GPU{} here, cuda:0{}", wanted,
                      n == 1 ? "is" : "are", n, n == 1 ? "" : "s",
                      n == 1 ? "" : fmt::format(" to cuda:{}", n - 1));
  return {Device::Kind::cuda, index};
}

MemoryLimits memory_limits(const recipe::Run& run, Device device) {
  MemoryLimits limits{.host = run.host_memory_limit ? static_cast<size_t>(run.host_memory_limit->value)
                                                    : available_host_bytes() + resident_bytes()};
  if (device.kind != Device::Kind::cuda) return limits;
  limits.gpu = device;
  const cuda::DeviceInfo info = cuda::device_info(device.index);
  limits.gpu_free = limits.gpu_bytes = info.free_bytes;
  limits.gpu_total = info.total_bytes;
  // A limit makes the card look smaller, never larger.
  if (run.gpu_memory_limit)
    limits.gpu_bytes = std::min(limits.gpu_bytes, static_cast<size_t>(run.gpu_memory_limit->value));
  return limits;
}

void MemoryLimits::check(const MemoryPlan& plan) const {
  plan.check_fits({}, host);
  if (gpu.kind != Device::Kind::cuda) return;
  const size_t needed = plan.peak(gpu);
  const bool others_hold_it =
      gpu_bytes == gpu_free && needed > gpu_free && needed + kOwnContext <= gpu_total;
  if (!others_hold_it) return plan.check_fits(gpu, gpu_bytes);
  throw Error::make(ErrorKind::memory, gpu.name(),
                    "needs {} ({}), {} of {} are free: other processes hold the rest",
                    format_bytes(needed), plan.parts(gpu), format_bytes(gpu_free),
                    format_bytes(gpu_total))
      .hint(
          "wait for them (nvidia-smi lists them), use another GPU with --device cuda:N, or lower "
          "run.context or run.batch");
}

bool MemoryLimits::fits(const MemoryPlan& plan) const {
  return plan.peak({}) <= host && (gpu.kind != Device::Kind::cuda || plan.peak(gpu) <= gpu_bytes);
}

}  // namespace tandem::cli
