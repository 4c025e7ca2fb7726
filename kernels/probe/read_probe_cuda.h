#pragma once
#include <stddef.h>

#include "base/types.h"

namespace tandem {

/// Reads device memory once and keeps what a compiler cannot leave out: the rate at which a kernel
/// can stream.
/// layout   data 16-byte aligned; sink [1] is written only if all words are equal to a pattern
void read_probe_cuda(const void* data, size_t bytes, uint32_t* sink, Stream);

}  // namespace tandem
