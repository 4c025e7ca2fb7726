#pragma once
#include <string>

#include "kernels/cuda/gpu.h"

namespace tandem::cuda {

const char* gpu_isa_name(GpuIsa isa);

/// Makes kernels run the bodies of the named set ("portable", "hopper") on every GPU; the value of
/// TANDEM_GPU_ISA. Call before the first use of a GPU.
/// errors   kind usage for an unknown name; kind device for hopper if no GPU runs it
void force_gpu_isa(const std::string& name);
/// Forces the set that the variable TANDEM_GPU_ISA names; does nothing where it is unset or empty.
void force_gpu_isa_by_environment();

}  // namespace tandem::cuda
