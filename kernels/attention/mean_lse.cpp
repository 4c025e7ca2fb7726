#include "kernels/attention/mean_lse.h"

namespace tandem {

void mean_lse_cpu(const MeanLseParams& p, Range seqs) {
  for (int s = seqs.begin; s < seqs.end; ++s) {
    const int begin = p.row_begin[s], end = p.row_begin[s + 1];
    if (begin == end) continue;
    for (int layer = 0; layer < p.n_layers; ++layer)
      for (int head = 0; head < p.n_heads; ++head)
        p.out[p.slot[s] * p.out_slot_stride + layer * p.out_layer_stride + head] =
            mean_of_rows(p, layer, head, begin, end);
  }
}

}  // namespace tandem
