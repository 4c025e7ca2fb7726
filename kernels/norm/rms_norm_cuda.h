#pragma once
#include "kernels/norm/rms_norm.h"

namespace tandem {

/// rms_norm on a GPU: the contract of rms_norm.h with pointers into device memory.
/// numerics as there; a row's result depends on nothing but the row
/// cost     reads each row once (it is kept in registers up to 16,384 elements, read twice beyond)
void rms_norm_cuda(const RmsNormParams&, Stream);

}  // namespace tandem
