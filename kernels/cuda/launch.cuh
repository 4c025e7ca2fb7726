#pragma once
// Launches. On Hopper the start of a kernel overlaps with the end of the one before it on the
// stream (programmatic launches), elsewhere it follows that end: then the waits below are nothing.
#include <cuda_runtime.h>

#include "base/types.h"
#include "kernels/cuda/gpu.h"

namespace tandem::cuda {

/// Waits until all earlier kernels of the stream are done and what they wrote can be read. Before
/// it a kernel may read only what no kernel on the stream writes, such as weights.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Blocks of the next kernel may start wherever there is room, once all blocks of this one have
/// said so or are gone; they see its writes only after they call wait_for_previous.
__device__ inline void release_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Asks for the line of an address, to be in L2 when it is read.
__device__ inline void prefetch(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/// First statement of small kernels: the next one is set up while this one waits and works.
__device__ inline void start_after_previous() {
  release_next();
  wait_for_previous();
}

/// Puts a kernel on the stream; `cluster` blocks along x share a cluster, 1 but on Hopper. Without
/// one of the waits above in it, the kernel could run before its inputs are written. More than 48
/// KiB of shared memory need cudaFuncSetAttribute first.
template <class... Params, class... Args>
void launch(void (*kernel)(Params...), dim3 grid, int threads, size_t shared_bytes, int cluster,
            Stream stream, const Args&... args) {
  const bool hopper = gpu().isa == GpuIsa::hopper;
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
  config.numAttrs = !hopper ? 0 : cluster > 1 ? 2 : 1;
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
