#pragma once
#include "kernels/linear/quantized_linear.h"

namespace tandem {

/// Bytes of workspace for products of up to `rows` rows. It does not shrink when they grow.
size_t quantized_linear_workspace_bytes(const CodedMatrix&, int64_t rows);

/// A whole product on the thread pool.
/// units    `workspace` as quantized_linear_workspace_bytes has it, aligned to 64 bytes to be fast
void quantized_linear_with(const QuantizedLinearKernel&, const QuantizedLinearParams&,
                           void* workspace, int threads);

}  // namespace tandem
