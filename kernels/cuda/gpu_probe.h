#pragma once
#include <cuda_runtime.h>

namespace tandem::cuda {

// The most threads that the probe's code may be launched with show which code the driver has
// loaded: machine code for sm_90a, which alone has Hopper's instructions, or any other. The same
// GPU may run either, since the driver can be made to compile the PTX (CUDA_FORCE_PTX_JIT=1).
inline constexpr int kPortableProbeThreads = 32, kHopperProbeThreads = 64;

/// What the driver loads of this program on the GPU in use: maxThreadsPerBlock is one of the above,
/// ptxVersion what the code was written for, binaryVersion what runs; they differ where the driver
/// compiled PTX.
cudaError_t probe_loaded_code(cudaFuncAttributes& loaded);

}  // namespace tandem::cuda
