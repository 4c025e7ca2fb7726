#pragma once
#include <cstddef>

namespace tandem {

/// Gives anonymous memory its pages, on all threads: a system that pins memory would ask for one
/// after the other, at 2 GB/s. Threads take huge pages in turns, so that on a machine of several
/// nodes each part of the memory, such as the keys of a layer, is spread over all of them: which
/// thread reads a row is known only when it is read. Where the system does not know the call, a
/// page comes with the first write to it. Contents stay.
void first_touch(void* data, size_t bytes);

}  // namespace tandem
