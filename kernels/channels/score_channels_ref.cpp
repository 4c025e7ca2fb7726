#include <algorithm>
#include <cmath>

#include "kernels/channels/score_channels.h"
#include "kernels/reference.h"

namespace tandem {

void score_channels_ref(const ScoreChannelsParams& p, Range channels) {
  for (int64_t j = channels.begin; j < channels.end; ++j) {
    double score = 0;
    for (int b = 0; b < p.n_seqs; ++b) {
      double weight = 1;
      if (p.weights.sums != nullptr) {
        const double rows = p.weights.rows[p.slot[b] * p.weights.rows_stride];
        if (rows > 0)
          weight = std::sqrt(p.weights.sums[p.slot[b] * p.weights.slot_stride + j] / rows);
      }
      for (int64_t r = p.row_begin[b]; r < p.row_begin[b + 1]; ++r) {
        const double x = std::abs(element(p.gate, p.type, r * p.n_channels + j)) * weight;
        score = p.largest ? std::max(score, x) : score + x;
      }
    }
    p.scores[j] = static_cast<float>(score * (p.norms != nullptr ? p.norms[j] : 1));
  }
}

}  // namespace tandem
