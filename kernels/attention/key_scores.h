#pragma once
// The scores of keys that a call may want in addition (KeyScores): a maximum over all queries of a
// KV head, so no order of work shows in it. Included by ISA files only.
#include "kernels/attention/block.h"

namespace tandem {
namespace {

/// Added to the scores of each state vector's queries.
inline void load_score_off(const Block& b) {
  if (b.key_scores == nullptr) return;
  const AttentionParams& p = *b.params;
  const float* lse = p.scores.lse + table_row(p, b.seq_index) * p.scores.lse_stride;
  for (int v = 0; v < b.n_vectors; ++v)
    for (int lane = 0; lane < kW; ++lane) {
      const int query = b.query(b.few ? v : v * kW + lane), g = b.group_size();
      b.scratch.score_off[v * kW + lane] = -lse[b.kv_head * g + query % g] * kLog2E;
    }
}

/// The largest scores of the page index of a step over the lanes of n vectors from `first` on.
/// shapes   s [vector][64][kW], sv floats from vector to vector: scores, times c exponents of 2
inline void collect_scores(const Block& b, int first, int n, int index, const float* s, int sv,
                           float c) {
  float* to = b.scratch.top_scores + index * kPageTokens;
  for (int k = 0; k < kPageTokens; k += kW) {
    Vec top[kW];
    for (int v = 0; v < n; ++v) {
      const Vec off = simd::load(b.scratch.score_off + (first + v) * kW);
#pragma GCC unroll 16
      for (int j = 0; j < kW; ++j) {
        const Vec x = fma(simd::load(s + v * sv + (k + j) * kW), simd::set1(c), off);
        top[j] = v == 0 ? x : max(x, top[j]);
      }
    }
    const Vec all = simd::max_of_each(top);
    simd::store(to + k, first == 0 ? all : max(all, simd::load(to + k)));
  }
}

/// Writes the scores that were collected of the page index of a step, which is page `page`.
inline void write_scores(const Block& b, int index, int page) {
  if (page * kPageTokens >= b.params->base[b.seq_index]) return;
  const float* from = b.scratch.top_scores + index * kPageTokens;
  f16* to = b.key_scores + page * kPageTokens;
  for (int k = 0; k < kPageTokens; k += kW) {
    const Vec x = simd::load(from + k) * simd::set1(kLn2);
    simd::store(to + k, b.follows ? max(x, simd::load(to + k)) : x);
  }
}

}  // namespace
}  // namespace tandem
