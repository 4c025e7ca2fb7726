#pragma once
// Loops that measure what a machine can do. No STL: included by sources with per-ISA flags.
#include <stddef.h>

#include "base/types.h"

namespace tandem {

/// Bytes of one work item of read_probe.
inline constexpr int kReadProbeBlock = 4096;

struct ReadProbeParams {
  uint64_t* sum;     // [1], one per concurrent call; keeps the reads from being dropped
  const void* data;  // 64-byte aligned
};

/// Reads blocks of memory in address order with the widest loads.
/// cost     reads (end - begin) * kReadProbeBlock bytes, one addition a load
using ReadProbeFn = void(const ReadProbeParams&, Range blocks);
ReadProbeFn read_probe_scalar, read_probe_avx2, read_probe_avx512;

/// Operations of one work item of fma_probe, the same on every ISA.
inline constexpr int kFmaProbeFlops = 1 << 20;

struct FmaProbeParams {
  float* sum;  // [1], one per concurrent call
};

/// Independent chains of f32 multiply-adds in registers.
/// cost     (end - begin) * kFmaProbeFlops operations, no memory
using FmaProbeFn = void(const FmaProbeParams&, Range items);
FmaProbeFn fma_probe_scalar, fma_probe_avx2, fma_probe_avx512;

/// Reads a GPU's memory once and keeps what a compiler cannot leave out: the rate at which a kernel
/// can stream.
/// layout   data 16-byte aligned; sink [1] is written only if all words are equal to a pattern
void read_probe_cuda(const void* data, size_t bytes, uint32_t* sink, Stream);

}  // namespace tandem
