#pragma once
#include "kernels/embed/fill_random.h"

namespace tandem {

/// fill_random on a GPU: the contract of fill_random.h with `out` in device memory; the CPU's bits.
void fill_random_cuda(const FillRandomParams&, Stream);

}  // namespace tandem
