#pragma once
#include "kernels/copy/host_copy.h"
#include "kernels/sample/slot_ids.h"

/// Small transfers around a step. They run on the GPU whose stream is given and may be recorded in
/// a graph there, or at once on the CPU where the stream is null.
/// errors   kind device in a build without CUDA
namespace tandem::ops {

/// kernels/sample/slot_ids.h defines these two.
void load_slot_ids(const SlotIdsParams& params, Stream stream);
void store_slot_ids(const SlotIdsParams& params, Stream stream);

/// Between pinned host memory and a GPU's, as kernels/copy/host_copy.h says. On the CPU any copy,
/// whose ends may be the same place.
void host_copy(const HostCopyParams& params, Stream stream);

/// Writes the time when all work before it is done.
/// units    ns [1] nanoseconds since a moment that does not change, another one on each device
void read_clock(uint64_t* ns, Stream stream);

}  // namespace tandem::ops
