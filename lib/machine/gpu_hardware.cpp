#include "machine/gpu_hardware.h"

#include <algorithm>
#include <map>
#include <memory>

#include "kernels/cuda_table.h"
#include "ops/linear.h"
#include "ops/loading.h"
#include "tensor/cuda.h"

namespace tandem::machine {
namespace {

constexpr int kPasses = 5;

struct FreeDevice {
  void operator()(void* p) const { cuda::free_memory(p); }
};
using DeviceMemory = std::unique_ptr<void, FreeDevice>;

/// Shortest time of a few passes, in ms.
template <class Work>
float best_ms(cuda::Queue& queue, const Work& work) {
  float best = 1e30f;
  for (int pass = 0; pass < kPasses; ++pass) {
    cuda::Event begin(true), end(true);
    begin.record(queue);
    work();
    end.record(queue);
    end.wait();
    if (pass > 0) best = std::min(best, end.ms_since(begin));  // the first warms up
  }
  return best;
}

double read_gbps(cuda::Queue& queue) {
  constexpr size_t kMost = size_t{2} << 30, kLeast = size_t{256} << 20;  // several times the L2
  const size_t bytes =
      std::min(kMost, cuda::device_info(queue.device()).free_bytes / 4) / 4096 * 4096;
  if (bytes < kLeast) return 0;
  const DeviceMemory data(cuda::allocate(queue.device(), bytes + 4096));
  ops::fill_random(data.get(), DType::bf16, {.n = static_cast<int64_t>(bytes / 2)}, queue.stream());
  auto* sink = reinterpret_cast<uint32_t*>(static_cast<std::byte*>(data.get()) + bytes);
  const float ms = best_ms(queue, [&] {
    cuda_table().read_probe(data.get(), bytes, sink, queue.stream());
    cuda::launched("read_probe", queue.stream());
  });
  return static_cast<double>(bytes) / ms * 1e-6;
}

double copy_in_gbps(cuda::Queue& queue) {
  constexpr size_t kBytes = size_t{64} << 20;
  if (cuda::device_info(queue.device()).free_bytes < 2 * kBytes) return 0;
  const cuda::PinnedBuffer host(kBytes);
  const DeviceMemory data(cuda::allocate(queue.device(), kBytes));
  const float ms = best_ms(queue, [&] { queue.copy_in(data.get(), host.data(), kBytes); });
  return static_cast<double>(kBytes) / ms * 1e-6;
}

double gemm_gflops(cuda::Queue& queue) {
  constexpr int64_t kSize = 8192;
  const Device device{Device::Kind::cuda, queue.device()};
  const ops::PackedWeights::Spec spec{
      .name = "weights/probe", .out = kSize, .in = kSize, .stored = DType::bf16, .device = device};
  const size_t operand = static_cast<size_t>(kSize * kSize) * sizeof(bf16);
  MemoryPlan plan;
  ops::PackedWeights::plan(spec, plan);
  plan.add("staging", ops::PackedWeights::staging_bytes(spec), {}, Lifetime::load);
  for (const char* name : {"x", "y"}) plan.add(name, operand, device);
  plan.add("workspace", ops::PackedWeights::workspace_bytes(spec, kSize), device);
  if (plan.peak(device) > cuda::device_info(device.index).free_bytes) return 0;
  Arena arena(plan);
  ops::PackedWeights weights;
  {
    ops::Staging staging(device, arena.take("staging"), plan.find("staging")->bytes);
    weights.load(
        spec, arena, {}, {}, staging, [&](int64_t begin, int64_t end, void* to, Stream stream) {
          ops::fill_random(to, DType::bf16,
                           {.tensor = 1, .first = begin * kSize, .n = (end - begin) * kSize},
                           stream);
          return true;
        });
    staging.wait();
  }
  const Tensor x(arena.take("x"), DType::bf16, {kSize, kSize}, device);
  const Tensor y(arena.take("y"), DType::bf16, {kSize, kSize}, device);
  const std::span workspace(static_cast<std::byte*>(arena.take("workspace")),
                            plan.find("workspace")->bytes);
  ops::fill_random(x.raw(), DType::bf16, {.tensor = 2, .n = x.elements()}, queue.stream());
  const ops::PackedWeights* const alike[] = {&weights};
  ops::tune_linear(y, x, alike, ops::Accumulate::no, {}, workspace, queue.stream());
  const float ms = best_ms(
      queue, [&] { ops::linear(y, x, weights, ops::Accumulate::no, workspace, queue.stream()); });
  return 2.0 * kSize * kSize * kSize / ms * 1e-6;
}

}  // namespace

double measure_gpu_read_gbps(Device device) {
  cuda::Queue queue(device.index);
  return read_gbps(queue);
}

double measure_gpu_copy_in_gbps(Device device) {
  cuda::Queue queue(device.index);
  return copy_in_gbps(queue);
}

const Ceilings& gpu_ceilings(Device device) {
  static std::map<int, Ceilings> known;
  if (const auto it = known.find(device.index); it != known.end()) return it->second;
  cuda::Queue queue(device.index);
  Ceilings c;
  c.mem_read_gbps = read_gbps(queue);
  c.copy_in_gbps = copy_in_gbps(queue);
  c.gemm_bf16_gflops = gemm_gflops(queue);
  return known.emplace(device.index, c).first->second;
}

}  // namespace tandem::machine
