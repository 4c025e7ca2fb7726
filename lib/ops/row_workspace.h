#pragma once
#include <cstddef>
#include <memory>
#include <new>

#include "base/parallel.h"
#include "base/types.h"

namespace tandem::ops {

struct WorkspaceDelete {
  void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
};
using Workspace = std::unique_ptr<std::byte[], WorkspaceDelete>;

/// Memory of the calling thread, which keeps it: fresh pages would cost more than the work.
inline std::byte* thread_workspace(size_t bytes) {
  thread_local Workspace memory;
  thread_local size_t size = 0;
  if (bytes > size) {
    size = 0;  // should there be no memory
    memory.reset();
    memory.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{64})));
    size = bytes;
  }
  return memory.get();
}

/// Runs a kernel over n independent items; each concurrent piece has a workspace.
template <class Params>
void run_with_workspace(void (*kernel)(const Params&, Range), const Params& params, int n,
                        size_t bytes) {
  parallel_ranges(n, 1, [&](int begin, int end) {
    Params mine = params;
    mine.workspace = thread_workspace(bytes);
    kernel(mine, Range{begin, end});
  });
}

}  // namespace tandem::ops
