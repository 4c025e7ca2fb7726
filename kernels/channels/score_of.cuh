#pragma once
// The score of a channel, for the kernel that writes scores and for the one that chooses by them.
#include <math.h>

#include "kernels/channels/score_channels.h"
#include "kernels/cuda/number.cuh"

namespace tandem {

/// score_channels.h has the formula. T: the type of gate.
template <class T>
__device__ float score_of(const ScoreChannelsParams& p, int64_t j) {
  float score = 0;
  for (int b = 0; b < p.n_seqs; ++b) {
    const int64_t first = p.row_begin[b], last = p.row_begin[b + 1];
    if (first == last) continue;
    float weight = 1;
    if (p.weights.sums != nullptr) {
      const int64_t slot = p.slot[b];
      const float rows = p.weights.rows[slot * p.weights.rows_stride];
      if (rows > 0) weight = sqrtf(p.weights.sums[slot * p.weights.slot_stride + j] / rows);
    }
#pragma unroll 4
    for (int64_t r = first; r < last; ++r) {
      const float x = fabsf(cuda::to_float(static_cast<const T*>(p.gate)[r * p.n_channels + j]));
      score = p.largest ? fmaxf(score, x * weight) : fmaf(x, weight, score);
    }
  }
  return p.norms != nullptr ? score * p.norms[j] : score;
}

}  // namespace tandem
