#pragma once
#include "kernels/ffn/silu_mul.h"

namespace tandem {

/// silu_mul on a GPU: the contract of silu_mul.h with pointers into device memory.
void silu_mul_cuda(const SiluMulParams&, Stream);

}  // namespace tandem
