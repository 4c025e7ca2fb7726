#include "kernels/attention/backward_tiles.cuh"

namespace tandem::portable {

void attention_backward_cuda(const AttentionBackwardParams& p, const AttentionBackwardLaunch& l,
                             Stream stream) {
  if (l.n_rows == 0 || p.n_seqs == 0) return;
  p.act == DType::bf16 ? backward_bf16(p, l, stream) : backward_f32(p, l, stream);
}

}  // namespace tandem::portable
