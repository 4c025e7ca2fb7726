#include "tensor/driver_memory.h"

#include <algorithm>

#include "tensor/cuda.h"

namespace tandem {
namespace {

/// An H200 at the end of runs had 535 to 545 MiB in use above their buffers
/// (records/gpu-h200-sparse.jsonl).
constexpr size_t kOfRecord = size_t{548} << 20;
/// Of it, what comes after a run is planned.
constexpr size_t kToCome = size_t{64} << 20;
/// An entry of 8 bytes for each 4 KiB: 92 MiB more than those with 45 GiB, 22 with 11
/// (records/gpu-h200-across-ways.jsonl).
constexpr size_t kPinnedAByte = 4096 / 8;

/// Kernels of tandem and cuBLASLt, and the driver's records of them, take host memory after a run
/// is planned: 76 to 82 MiB after one prompt on an H100 or H200, 95 to 105 after 200 prompts, most
/// with a draft model (records/gpu-h200-peaks.jsonl). kHostOfRecord is what a process holds
/// by then, less the program.
constexpr size_t kHostToCome = size_t{108} << 20, kHostOfRecord = size_t{325} << 20;
/// A first run in f32 times kernels of cuBLASLt, whose code takes 59 MiB. A run in bf16 has loaded
/// them before it is planned.
constexpr size_t kF32Kernels = size_t{64} << 20;

/// While no buffers are allocated.
size_t held_now(int gpu) {
  const cuda::DeviceInfo info = cuda::device_info(gpu);
  return std::min(info.total_bytes - info.free_bytes, kMostDriverBytes);
}

}  // namespace

size_t driver_bytes(Device device, bool is_here) {
  if (device.kind != Device::Kind::cuda) return 0;
  return is_here ? held_now(device.index) + kToCome : kOfRecord;
}

void plan_driver(Device device, DType compute, bool is_here, size_t pinned, MemoryPlan& plan) {
  plan.add(kDriverItem, driver_bytes(device, is_here), device);
  plan.add("process/page tables of pinned memory",
           device.kind == Device::Kind::cuda ? pinned / kPinnedAByte : 0, device);
  plan_host_driver(device, compute, is_here, plan);
}

void plan_host_driver(Device device, DType compute, bool is_here, MemoryPlan& plan) {
  if (device.kind != Device::Kind::cuda) return;
  if (!is_here) plan.add(kHostDriverItem, kHostOfRecord);
  plan.add(kHostCodeItem, kHostToCome + (compute == DType::f32 ? kF32Kernels : 0));
}

}  // namespace tandem
