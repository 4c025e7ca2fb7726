#include "kernels/embed/embed_backward.h"

namespace tandem {

void embed_backward_cpu(const EmbedBackwardParams& p, Range ids) {
  for (int i = ids.begin; i < ids.end; ++i) {
    float* const to = p.dtable + int64_t{p.ids[i]} * p.dim;
    for (int k = p.begin[i]; k < p.begin[i + 1]; ++k) {
      const float* const from = p.dx + int64_t{p.rows[k]} * p.dim;
      for (int c = 0; c < p.dim; ++c) to[c] += from[c];
    }
  }
}

}  // namespace tandem
