#pragma once
// Programmatic dependent launch: a kernel begins while the one before it in the stream ends, and
// waits on the device for its results. Every block that touches memory of other kernels must wait
// first.
#include <cuda_runtime.h>

namespace tandem::cuda {

/// Waits until all earlier kernels of the stream are done and what they wrote can be seen.
__device__ inline void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

/// The next kernel's blocks may start wherever there is room, once all blocks of this one have said
/// so or are gone. It sees this kernel's results only after its own wait_for_previous.
__device__ inline void release_next() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// Launches a kernel that calls wait_for_previous.
template <class... Parameters, class... Arguments>
void launch_overlapping(void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
                        size_t shared_bytes, cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

}  // namespace tandem::cuda
