#pragma once
#include <stddef.h>

#include "base/types.h"

namespace tandem {

struct HostCopyParams {
  void* to;          // 16-byte aligned
  const void* from;  // 16-byte aligned
  size_t bytes;      // a multiple of 16
  // Of work that is recorded once and run in turns: the ends lie *turn times as many bytes further,
  // each a multiple of 16. Null: turn 0.
  const int32_t* turn = nullptr;
  ptrdiff_t to_step = 0, from_step = 0;
};

/// A small copy between device memory and pinned host memory, by loads and stores of a kernel: for
/// a few kilobytes at an end of a graph, a copy engine would take longer to start and to be waited
/// for than the bytes to cross the link.
/// cost     microseconds of latency; beyond 100 KB a copy of the runtime is faster
/// errors   none (preconditions checked by the caller)
void host_copy_cuda(const HostCopyParams&, Stream);

/// Writes the GPU's clock when all earlier work of the stream is done.
/// units    ns [1] nanoseconds since a moment that does not change
/// errors   none (preconditions checked by the caller)
void read_clock_cuda(uint64_t* ns, Stream);

}  // namespace tandem
