#pragma once
#include <algorithm>
#include <vector>

#include "kernels/key_votes_case.h"
#include "kernels/selection/chunks.h"

namespace tandem::test {

/// Chunks of a sequence in scattered pages. Keys beyond them and of other KV heads are NaN.
struct ChunkCase {
  VoteCase text;  // its keys
  int chunk, first, n;

  /// n      chunks from the first-th on
  ChunkCase(DType dtype, int dim, int tokens, int first_chunk, int n_chunks)
      : text(dtype, (first_chunk + n_chunks) * tokens, 1, 1, dim),
        chunk(tokens),
        first(first_chunk),
        n(n_chunks) {}

  ActBuffer means(ChunkMeansFn* fn) {
    ActBuffer out(text.dtype, static_cast<size_t>(n * text.d), 1);
    fn({.means = out.data(),
        .k_pool = text.keys.data(),
        .pages = text.pages.data(),
        .token = first * chunk,
        .n = n,
        .chunk = chunk,
        .n_kv_heads = VoteCase::kHeads,
        .kv_head = VoteCase::kHead,
        .d = text.d,
        .dtype = text.dtype});
    return out;
  }
};

inline std::vector<float> chunk_scores_of(ChunkScoresFn* fn, ActBuffer& means, Buffer<float>& q,
                                          int d) {
  const int n = static_cast<int>(means.size()) / d;
  Buffer<float> scores(static_cast<size_t>(n), 1);
  fn({.scores = scores.data(),
      .q = q.data(),
      .means = means.data(),
      .n = n,
      .n_q = static_cast<int>(q.size()) / d,
      .d = d,
      .dtype = means.type});
  return {scores.data(), scores.data() + n};
}

}  // namespace tandem::test
