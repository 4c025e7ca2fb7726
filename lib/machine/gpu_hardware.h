#pragma once
#include "machine/hardware.h"
#include "tensor/tensor.h"

namespace tandem::machine {

/// Rate of streaming reads of a GPU's memory, GB/s: some milliseconds, and at most 2 GiB or a
/// quarter of the free memory, freed at once; 0 where that is too little to measure.
/// errors   kind device
double measure_gpu_read_gbps(Device device);

/// Rate of copies from pinned host memory to a GPU, GB/s, while no others run: some milliseconds,
/// and 64 MiB on both sides; 0 where the GPU has no room for them.
/// errors   kind device
double measure_gpu_copy_in_gbps(Device device);

/// Rates that a GPU reaches, as measure_ceilings for the CPU: that of reads, of copies from pinned
/// host memory, and of bf16 products of 8192 x 8192 x 8192 through the library that the engine
/// uses. Measured once a process, before an engine fills the GPU: it takes 0.5 GiB more.
/// errors   kind device, memory
const Ceilings& gpu_ceilings(Device device);

}  // namespace tandem::machine
