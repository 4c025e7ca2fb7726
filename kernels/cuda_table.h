#pragma once
#include "kernels/norm/rms_norm.h"

namespace tandem {

/// The CUDA launcher of every operation, as CpuTable holds the CPU variants. The parameters are those
/// of the CPU with pointers into device memory; a call puts its work on the stream and returns.
struct CudaTable {
  void (*rms_norm)(const RmsNormParams&, Stream);
};

/// errors   kind device in a build without CUDA
const CudaTable& cuda_table();

}  // namespace tandem
