#pragma once
#include "kernels/embed/convert.h"

namespace tandem {

/// convert on a GPU: the contract of convert.h with pointers into device memory, both aligned to
/// their element. Work items are of no concern here.
void convert_cuda(const ConvertParams&, Stream);

}  // namespace tandem
