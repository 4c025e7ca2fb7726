#include <algorithm>
#include <cmath>

#include "base/convert.h"
#include "kernels/selection/chunks.h"

namespace tandem {
namespace {

float float_at(const void* p, DType dtype, int64_t i) {
  return dtype == DType::f32 ? static_cast<const float*>(p)[i]
                             : to_float(static_cast<const bf16*>(p)[i]);
}

}  // namespace

void chunk_means_ref(const ChunkMeansParams& p) {
  for (int i = 0; i < p.n; ++i)
    for (int c = 0; c < p.d; ++c) {
      float sum = 0;
      for (int t = p.token + i * p.chunk; t < p.token + (i + 1) * p.chunk; ++t) {
        const int64_t page = p.pages[t / kPageTokens];
        const int64_t row = (page * p.n_kv_heads + p.kv_head) * kPageTokens + t % kPageTokens;
        sum += float_at(p.k_pool, p.dtype, row * p.d + c);
      }
      const float mean = sum / static_cast<float>(p.chunk);
      const int64_t at = int64_t{i} * p.d + c;
      if (p.dtype == DType::f32)
        static_cast<float*>(p.means)[at] = mean;
      else
        static_cast<bf16*>(p.means)[at] = to_bf16(mean);
    }
}

void chunk_scores_ref(const ChunkScoresParams& p) {
  constexpr double kMost = __FLT_MAX__;
  for (int i = 0; i < p.n; ++i) {
    double best = -kMost;
    for (int h = 0; h < p.n_q; ++h) {
      double dot = 0;
      for (int c = 0; c < p.d; ++c)
        dot += double{p.q[int64_t{h} * p.d + c]} * float_at(p.means, p.dtype, int64_t{i} * p.d + c);
      if (!std::isnan(dot)) best = std::max(best, std::min(dot, kMost));
    }
    p.scores[i] = static_cast<float>(best);
  }
}

}  // namespace tandem
