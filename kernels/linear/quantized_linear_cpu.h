#pragma once
#include "base/weight_format.h"
#include "kernels/linear/quantized_linear.h"

namespace tandem {

inline WeightFormat format_of(const CodedMatrix& m) {
  return {m.code, static_cast<int16_t>(m.group), m.scale, m.zero};
}

/// Bytes of workspace for products of up to `rows` rows. It does not shrink when they grow.
size_t quantized_linear_workspace_bytes(const CodedMatrix&, int64_t rows);

/// A whole product on the thread pool.
/// units    `workspace` as quantized_linear_workspace_bytes has it, aligned to 64 bytes to be fast
void quantized_linear_with(const QuantizedLinearKernel&, const QuantizedLinearParams&,
                           void* workspace, int threads);

}  // namespace tandem
