#pragma once
// Launches that overlap the start of a kernel with the end of the one before it on the stream.
// Launches that overlap with the kernel before them in the stream (programmatic dependent launch).
#include <cuda_runtime.h>

#include "base/types.h"

namespace tandem::cuda {

/// First statement of every kernel that `launch` starts: lets the next kernel of the stream be set
/// up already and waits until the one before is done and its writes can be read. Only what no
/// kernel writes (weights) may be read earlier.
__device__ inline void wait_for_previous() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

/// Puts a kernel on the stream; `cluster` blocks along x share a cluster. Without the wait above in
/// it, the kernel could run before its inputs are written.
template <class... Params, class... Args>
void launch(void (*kernel)(Params...), dim3 grid, int threads, size_t shared_bytes, int cluster,
            Stream stream, const Args&... args) {
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream.handle);
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  (void)cudaLaunchKernelEx(&config, kernel, Params(args)...);  // errors: see cuda::launched
}

template <class... Params, class... Args>
void launch(void (*kernel)(Params...), dim3 grid, int threads, Stream stream, const Args&... args) {
  launch(kernel, grid, threads, 0, 1, stream, args...);
}

/// Blocks of `threads` that cover n work items.
inline unsigned blocks_for(int64_t n, int threads) {
  return static_cast<unsigned>((n + threads - 1) / threads);
/// Lets the next kernel's blocks take the room that is left beside this one's.
__device__ inline void let_next_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// Waits until the kernels before this one have finished and their writes are visible. What a
/// kernel reads before must not be written by work that is still on the stream.
__device__ inline void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

/// Launches a kernel that may begin while the one before it ends; every block of it must call
/// wait_for_previous(). `shared_bytes` may exceed the 48 KiB that need no asking.
template <class Params>
cudaError_t launch_overlapped(void (*kernel)(Params), int blocks, int threads, int shared_bytes,
                              Stream stream, const Params& params) {
  const cudaError_t code =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (code != cudaSuccess) return code;
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(blocks);
  config.blockDim = static_cast<unsigned>(threads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream.handle);
  config.attrs = &overlap;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, params);
}

}  // namespace tandem::cuda
