#include "tensor/pinned_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "base/parallel.h"

namespace tandem {
namespace {

/// Bytes of a range beyond which pinning is refused, for tests of what happens then
/// (TANDEM_PIN_LIMIT); any number without.
size_t pin_limit() {
  const char* value = std::getenv("TANDEM_PIN_LIMIT");
  return value == nullptr ? SIZE_MAX : static_cast<size_t>(std::strtoull(value, nullptr, 10));
}

}  // namespace

PinnedPages::PinnedPages(void* data, size_t bytes, size_t piece) {
  constexpr size_t kPage = 4096;
  auto* const begin = static_cast<std::byte*>(data);
  first_touch(data, bytes);
  if (pin(begin, bytes, bytes)) return;
  if (piece == 0 || piece >= bytes || piece % kPage != 0) return;
  // A limit may count the bytes of a call, or no range of the driver is as long as this.
  const std::string whole = refusal_;
  if (!pin(begin, bytes, piece)) refusal_ = whole;
}

bool PinnedPages::pin(std::byte* data, size_t bytes, size_t piece) {
  refusal_.clear();
  try {
    if (std::min(piece, bytes) > pin_limit())
      throw Error(ErrorKind::device, "cuda",
                  "cannot pin host memory: the range is larger than TANDEM_PIN_LIMIT");
    for (size_t at = 0; at < bytes; at += piece)
      ranges_.push_back(
          std::make_unique<cuda::PinnedRange>(data + at, std::min(piece, bytes - at)));
  } catch (const Error& e) {
    ranges_.clear();
    refusal_ = e.message();
  }
  return refusal_.empty();
}

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
