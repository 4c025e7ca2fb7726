#include <cuda_runtime.h>

#include "kernels/probe/probe.h"

namespace tandem {
namespace {

constexpr int kThreads = 512;
constexpr int kInFlight = 8;  // 16-byte loads of a thread before it uses the first
constexpr unsigned kBlocks = 132 * 4 * 8;

__global__ void __launch_bounds__(kThreads) read_all(const uint4* data, size_t n, uint32_t* sink) {
  const size_t stride = size_t{gridDim.x} * kThreads;
  uint32_t sum = 0;
  size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i + (kInFlight - 1) * stride < n; i += kInFlight * stride) {
    uint4 v[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) v[k] = __ldcs(data + i + k * stride);
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) sum ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  for (; i < n; i += stride) sum ^= data[i].x;
  if (sum == 0x5eed5eedu) *sink = sum;
}

}  // namespace

void read_probe_cuda(const void* data, size_t bytes, uint32_t* sink, Stream stream) {
  read_all<<<kBlocks, kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(
      static_cast<const uint4*>(data), bytes / sizeof(uint4), sink);
}

}  // namespace tandem
