#include "kernels/attention/prefill_portable.cuh"

namespace tandem::portable {

void attention_many_rows_cuda(const AttentionParams& p, const AttentionRows& rows, Stream stream) {
  if (rows.n_rows == 0) return;
  const auto on = static_cast<cudaStream_t>(stream.handle);
  p.dtype == DType::bf16 ? prefill_bf16(p, rows, on) : prefill_f32(p, rows, on);
}

}  // namespace tandem::portable
