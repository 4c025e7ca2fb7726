#include "tensor/first_touch.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

#include "base/parallel.h"

namespace tandem {

void first_touch(void* data, size_t bytes) {
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20, kPage = 4096;
  if (bytes == 0) return;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data) / kPage * kPage,
                  end = reinterpret_cast<uintptr_t>(data) + bytes;
  const auto n = static_cast<int64_t>((end - 1) / kHugePage - begin / kHugePage + 1);
  parallel_for(static_cast<int>(n), [&](int i) {
    const uintptr_t huge = (begin / kHugePage + static_cast<uintptr_t>(i)) * kHugePage;
    const uintptr_t lo = std::max(begin, huge), hi = std::min(end, huge + kHugePage);
    (void)::madvise(reinterpret_cast<void*>(lo), hi - lo, MADV_POPULATE_WRITE);
  });
}

}  // namespace tandem
