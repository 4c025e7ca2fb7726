#include "kernels/cuda/gpu.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "kernels/cuda/gpu_probe.h"

namespace tandem::cuda {
namespace {

// Of compute capability 8.6, 8.9 and 12.0, which have the least.
constexpr int kLeastBlockShared = 99 * 1024, kLeastShared = 100 * 1024;

constexpr size_t kMostDevices = 64;

std::optional<GpuIsa> wanted;

void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();
  throw make_error(ErrorKind::device, "cuda", "{}: {} ({})", what, cudaGetErrorString(code),
                   cudaGetErrorName(code));
}

int in_use() {
  int device = 0;
  check(cudaGetDevice(&device), "cannot query the GPU");
  return device;
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cannot query the GPU");
  return value;
}

/// Of the device in use.
Gpu ask(int device) {
  cudaFuncAttributes loaded{};
  check(probe_loaded_code(loaded), "the GPU cannot run this program's code");
  const bool hopper = loaded.maxThreadsPerBlock == kHopperProbeThreads;
  Gpu g{.isa = wanted.value_or(hopper ? GpuIsa::hopper : GpuIsa::portable),
        .from_ptx = loaded.binaryVersion != loaded.ptxVersion,
        .multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device),
        .block_shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        .shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, device),
        .l2_bytes = attribute(cudaDevAttrL2CacheSize, device)};
  if (g.isa == GpuIsa::hopper && !hopper)
    throw make_error(ErrorKind::device, "TANDEM_GPU_ISA",
                     "'hopper' is not available: cuda:{} runs this program's portable code", device)
        .hint("unset TANDEM_GPU_ISA");
  if (wanted == GpuIsa::portable) {
    g.block_shared_bytes = std::min(g.block_shared_bytes, kLeastBlockShared);
    g.shared_bytes = std::min(g.shared_bytes, kLeastShared);
  }
  return g;
}

}  // namespace

const Gpu& gpu() { return gpu_of(in_use()); }

const Gpu& gpu_of(int index) {
  static std::array<std::optional<Gpu>, kMostDevices> known;
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  auto& g = known.at(static_cast<size_t>(index));
  if (!g) {
    const int before = in_use();
    check(cudaSetDevice(index), "cannot use the GPU");
    g = ask(index);
    check(cudaSetDevice(before), "cannot use the GPU");
  }
  return *g;
}

void set_gpu_isa(GpuIsa isa) { wanted = isa; }

}  // namespace tandem::cuda
