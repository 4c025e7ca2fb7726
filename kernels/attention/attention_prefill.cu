#include "kernels/attention/hopper/prefill.h"
#include "kernels/attention/prefill_portable.cuh"

namespace tandem {

void attention_many_rows_portable_cuda(const AttentionParams& p, const AttentionRows& rows,
                                       Stream stream) {
  if (rows.n_rows == 0) return;
  const auto on = static_cast<cudaStream_t>(stream.handle);
  if (p.dtype == DType::bf16)
    portable::prefill_bf16(p, rows, on);
  else
    portable::prefill_f32(p, rows, on);
}

void attention_many_rows_cuda(const AttentionParams& p, const AttentionRows& rows, Stream stream) {
  if (rows.n_rows == 0) return;
  if (hopper::prefill_supported(p))
    hopper::prefill(p, rows, stream);
  else
    attention_many_rows_portable_cuda(p, rows, stream);
}

}  // namespace tandem
