#include "kernels/selection/chunks.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

template <class T>
void mean_chunks(const ChunkMeansParams& p) {
  const Vec share = set1(1.0f / static_cast<float>(p.chunk));  // exact: chunks are powers of two
  for (int i = 0; i < p.n; ++i) {
    const int token = p.token + i * p.chunk;
    const int64_t row =
        (int64_t{p.pages[token / kPageTokens]} * p.n_kv_heads + p.kv_head) * kPageTokens +
        token % kPageTokens;
    const T* keys = static_cast<const T*>(p.k_pool) + row * p.d;
    T* out = static_cast<T*>(p.means) + int64_t{i} * p.d;
    for (int c = 0; c < p.d; c += Vec::kLanes) {
      const bool whole = p.d - c >= Vec::kLanes;
      Vec sum = zero();
      for (int t = 0; t < p.chunk; ++t) {
        const T* key = keys + int64_t{t} * p.d + c;
        sum = sum + (whole ? load(key) : load_n(key, p.d - c));
      }
      if (whole)
        store(out + c, sum * share);
      else
        store_n(out + c, sum * share, p.d - c);
    }
  }
}

/// Means whose products are worked out side by side.
constexpr int kChunksAbreast = 4;

/// Raises scores[i] to the product of q with mean i.
template <int kMeans, class T>
void raise_scores(float* scores, const float* q, const T* means, int d) {
  Vec sum[kMeans];
  for (int i = 0; i < kMeans; ++i) sum[i] = zero();
  int c = 0;
  for (; c + Vec::kLanes <= d; c += Vec::kLanes) {
    const Vec at = load(q + c);
#pragma GCC unroll 4
    for (int i = 0; i < kMeans; ++i) sum[i] = fma(at, load(means + int64_t{i} * d + c), sum[i]);
  }
  if (c < d) {
    const Vec at = load_n(q + c, d - c);
#pragma GCC unroll 4
    for (int i = 0; i < kMeans; ++i)
      sum[i] = fma(at, load_n(means + int64_t{i} * d + c, d - c), sum[i]);
  }
  for (int i = 0; i < kMeans; ++i) {
    const float score = reduce_add(sum[i]);
    // Comparisons with NaN are false.
    if (score > scores[i]) scores[i] = score < __FLT_MAX__ ? score : __FLT_MAX__;
  }
}

template <class T>
void score_chunks(const ChunkScoresParams& p) {
  const auto* means = static_cast<const T*>(p.means);
  for (int i = 0; i < p.n; ++i) p.scores[i] = -__FLT_MAX__;
  for (int i = 0; i < p.n;) {
    const T* from = means + int64_t{i} * p.d;
    const bool abreast = p.n - i >= kChunksAbreast;
    for (int h = 0; h < p.n_q; ++h) {
      const float* q = p.q + int64_t{h} * p.d;
      if (abreast)
        raise_scores<kChunksAbreast>(p.scores + i, q, from, p.d);
      else
        raise_scores<1>(p.scores + i, q, from, p.d);
    }
    i += abreast ? kChunksAbreast : 1;
  }
}

}  // namespace

void TANDEM_ISA_FN(chunk_means)(const ChunkMeansParams& p) {
  if (p.dtype == DType::f32) return mean_chunks<float>(p);
  mean_chunks<bf16>(p);
}

void TANDEM_ISA_FN(chunk_scores)(const ChunkScoresParams& p) {
  if (p.dtype == DType::f32) return score_chunks<float>(p);
  score_chunks<bf16>(p);
}

}  // namespace tandem
