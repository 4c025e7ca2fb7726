#pragma once
// Launches that overlap the start of a kernel with the end of the one before it on the stream.
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
}

}  // namespace tandem::cuda
