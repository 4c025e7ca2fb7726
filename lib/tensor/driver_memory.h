#pragma once
#include "tensor/memory_plan.h"

namespace tandem {

/// Of a GPU's memory, at most what the driver holds and this process' context beyond buffers: not
/// free, and held by no other process.
inline constexpr size_t kMostDriverBytes = size_t{1} << 30;

/// What plans call them.
inline constexpr const char* kDriverItem = "process/driver";

/// What plans call what a GPU's driver and libraries hold of the host's memory once a model runs,
/// and, of a GPU that is not here, before.
inline constexpr const char* kHostCodeItem = "gpu/code that loads when it first runs";
inline constexpr const char* kHostDriverItem = "process/driver on the host";

/// Bytes of a GPU's memory that hold no buffer: the driver's share and this process' context, as
/// they are now, and an allowance for code that loads when it first runs, for recorded graphs, and
/// for whole pages of 2 MiB. 0 on the CPU.
/// is_here  false: the GPU is not this machine's, and that of a record stands for it
/// errors   kind device
size_t driver_bytes(Device device, bool is_here);

/// Plans them, the page tables through which the GPU sees pinned host memory, and what
/// plan_host_driver does.
/// pinned   bytes of that
void plan_driver(Device device, DType compute, bool is_here, size_t pinned, MemoryPlan& plan);

/// Plans the memory of the host that a GPU's driver and libraries take beyond what the process
/// holds already; nothing on the CPU.
/// compute  the dtype of products, whose kernels a first run loads to time them
void plan_host_driver(Device device, DType compute, bool is_here, MemoryPlan& plan);

}  // namespace tandem
