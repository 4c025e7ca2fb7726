#pragma once
// The GPU that kernels are launched on: which bodies of them it runs, and its limits. For host code
// with and without CUDA's headers.
#include <stdint.h>

namespace tandem::cuda {

/// Instruction sets that CUDA kernels have bodies for, the weaker first.
enum class GpuIsa : uint8_t {
  portable,  // compute capability 8.0 and up: mma.sync, cp.async
  hopper,    // 9.0 alone: wgmma, copy engine, clusters, programmatic launches
};

struct Gpu {
  GpuIsa isa = GpuIsa::portable;  // the best that the device runs and the loaded code holds
  bool from_ptx = false;          // the driver has compiled the code that all GPUs share
  int multiprocessors = 1;
  int block_shared_bytes = 0;  // shared memory that one block may have
  int shared_bytes = 0;  // of a multiprocessor, 1 KiB of which the system keeps for each block
  int64_t l2_bytes = 0;
};

/// The GPU that this thread uses (cudaSetDevice), asked once.
/// errors   kind device: there is none, or no code of this program runs on it
const Gpu& gpu();

/// The same of device `index`, whichever this thread uses.
const Gpu& gpu_of(int index);

/// From now on the bodies of this set run, on every GPU. With portable also the limits are the
/// smallest of all GPUs that run them. Call before the first kernel runs.
void set_gpu_isa(GpuIsa isa);

}  // namespace tandem::cuda
