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

/// Runs a kernel over n independent items; each concurrent piece owns a workspace.
template <class Params>
void run_with_workspace(void (*kernel)(const Params&, Range), const Params& params, int n,
                        size_t bytes) {
  parallel_ranges(n, 1, [&](int begin, int end) {
    const Workspace workspace(
        static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{64})));
    Params mine = params;
    mine.workspace = workspace.get();
    kernel(mine, Range{begin, end});
  });
}

}  // namespace tandem::ops
