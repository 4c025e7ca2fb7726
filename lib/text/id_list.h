#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem::text {

/// The ids of a text while they are found, with a limit on their number.
struct IdList {
  std::vector<int32_t> ids{};
  size_t most = SIZE_MAX;
  size_t at_least = 0;    // ids that the text has, once that is known to be above `most`; else 0
  size_t bytes_done = 0;  // of the part that was read last when it became known

  /// Whether the limit holds these ids and `n_more`, which the bytes after `n_done` have at least.
  bool admit(size_t n_done, size_t n_more) {
    if (ids.size() <= most && n_more <= most - ids.size()) return true;
    at_least = ids.size() + n_more;
    bytes_done = n_done;
    return false;
  }
};

}  // namespace tandem::text
