#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tensor/cuda.h"

namespace tandem {

/// Host memory of a run on a GPU that is pinned for as long as this lives, if the system allows it:
/// as a whole, or else in pieces. Copies work in either case, of memory that is not pinned at the
/// pace of the driver's staging; kernels reach pinned memory alone.
class PinnedPages {
 public:
  PinnedPages() = default;
  /// data     page aligned
  /// piece    bytes, of whole pages, whose borders no copy crosses; 0: pinned as a whole or not at
  ///          all
  PinnedPages(void* data, size_t bytes, size_t piece);

  /// Why it is not pinned; empty where it is.
  const std::string& refusal() const { return refusal_; }

 private:
  bool pin(std::byte* data, size_t bytes, size_t piece);

  std::vector<std::unique_ptr<cuda::PinnedRange>> ranges_;
  std::string refusal_;
};

/// Gives anonymous memory its pages, on all threads: a system that pins memory would ask for one
/// after the other, at 2 GB/s. Threads take huge pages in turns, so that on a machine of several
/// nodes each part of the memory, such as the keys of a layer, is spread over all of them: which
/// thread reads a row is known only when it is read. Where the system does not know the call, a
/// page comes with the first write to it. Contents stay.
void first_touch(void* data, size_t bytes);

}  // namespace tandem
