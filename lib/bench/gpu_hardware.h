#pragma once
#include "bench/hardware.h"
#include "tensor/tensor.h"

namespace tandem::bench {

/// Rates that a GPU reaches, as measure_ceilings for the CPU: streaming read of its memory, and bf16
/// products of 8192 x 8192 x 8192 through the library that the engine uses. About half a second and
/// 2 GiB of its memory (less where less is free), given back at once.
/// errors   kind device, memory
Ceilings measure_gpu_ceilings(Device device);

}  // namespace tandem::bench
