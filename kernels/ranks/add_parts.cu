#include "kernels/ranks/add_parts.h"

#include <algorithm>

#include "kernels/cuda/launch.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 8;  // numbers of one access
// As many blocks as keep a link busy, and leave the rest of the GPU to what comes next.
constexpr unsigned kMostBlocks = 132 * 4;

__device__ void store_release(uint32_t* at, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

__device__ uint32_t load_acquire(const uint32_t* at) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

/// Past the first-level cache, which does not see what other GPUs write.
__device__ uint4 load_part(const void* parts, int64_t i) {
  uint4 w;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
               : "l"(static_cast<const uint4*>(parts) + i)
               : "memory");
  return w;
}

/// Waits until all ranks have their parts; false once the run has failed.
__device__ bool wait_for_parts(const PartLinks& links, uint32_t turn) {
  for (int r = 0; r < links.n_ranks; ++r)
    for (int spin = 1; r != links.rank; ++spin) {
      const uint32_t there = load_acquire(links.flags[links.rank] + r);
      if (static_cast<int32_t>(there - turn) >= 0) break;
      if (spin % 4096 == 0 && *reinterpret_cast<const volatile uint32_t*>(links.abort) != 0)
        return false;
    }
  return true;
}

__device__ float low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ float high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

__global__ void __launch_bounds__(kThreads) add_parts(const AddPartsParams p) {
  __shared__ bool go_on;
  cuda::release_next();
  cuda::wait_for_previous();
  const PartLinks& links = p.links;
  const uint32_t turn = links.turn[0] + 1;
  if (threadIdx.x == 0) {
    if (blockIdx.x == 0) {
      __threadfence_system();  // for the product before this kernel
      for (int r = 0; r < links.n_ranks; ++r)
        if (r != links.rank) store_release(links.flags[r] + links.rank, turn);
    }
    go_on = wait_for_parts(links, turn);
  }
  __syncthreads();
  auto* const x = reinterpret_cast<float4*>(p.x);
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; go_on && i < p.n / kEach;
       i += int64_t{gridDim.x} * kThreads) {
    float4 a = x[2 * i], b = x[2 * i + 1];
    for (int r = 0; r < links.n_ranks; ++r) {
      const uint4 w = load_part(links.parts[r], i);
      a.x += low(w.x);
      a.y += high(w.x);
      a.z += low(w.y);
      a.w += high(w.y);
      b.x += low(w.z);
      b.y += high(w.z);
      b.z += low(w.w);
      b.w += high(w.w);
    }
    x[2 * i] = a;
    x[2 * i + 1] = b;
  }
  __syncthreads();
  // The last block ends the turn.
  if (threadIdx.x == 0 && atomicAdd(links.turn + 1, 1) == gridDim.x - 1) {
    links.turn[1] = 0;
    links.turn[0] = turn;
  }
}

}  // namespace

void add_parts_cuda(const AddPartsParams& p, Stream stream) {
  if (p.n == 0) return;
  const unsigned blocks = std::min(cuda::blocks_for(p.n / kEach, kThreads), kMostBlocks);
  cuda::launch(add_parts, blocks, kThreads, stream, p);
}

}  // namespace tandem
