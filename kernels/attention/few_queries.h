#pragma once
// Attention of a few queries in f32, as in decode. Lanes hold keys while scores are made and
// channels while values are added, so that none is idle; each query has its own vectors of state, o
// as [d]. Every sum has the chain of FMAs that flash.h and engine_f32.h give it, hence every result
// its bits. Included by ISA files that have vectors only.
#include "kernels/attention/key_scores.h"
#include "kernels/attention/state.h"
#include "kernels/attention/tile_f32.h"

namespace tandem {
namespace {

/// Vectors of a tile of up to four queries: 8 chains of FMAs and more, within the registers.
constexpr int tile_vectors(int n_queries) {
  return kW == 16 ? 4 : n_queries == 1 ? 8 : n_queries == 4 ? 2 : 4;
}

template <int NV, int NI, class T>
TANDEM_INLINE void multiply_vectors(const Product<T>& p, int v, int n_v, int i, Ahead ahead) {
  for (; v + NV <= n_v; v += NV) {
    ahead.fetch_rows(v, NV);
    multiply_tile<NV, NI>(p, v, i);
  }
  if constexpr (NV > 1)
    if (v < n_v) multiply_vectors<NV - 1, NI>(p, v, n_v, i, ahead);
}

/// The product for n_v vectors and n_i queries; a share of `ahead` is fetched with every vector.
template <class T>
void multiply_few(const Product<T>& p, int n_v, int n_i, Ahead ahead) {
  for (int i = 0; i < n_i; i += 4) {
    switch (n_i - i) {
      case 1:
        multiply_vectors<tile_vectors(1), 1>(p, 0, n_v, i, ahead);
        break;
      case 2:
        multiply_vectors<tile_vectors(2), 2>(p, 0, n_v, i, ahead);
        break;
      case 3:
        multiply_vectors<tile_vectors(3), 3>(p, 0, n_v, i, ahead);
        break;
      default:
        multiply_vectors<tile_vectors(4), 4>(p, 0, n_v, i, ahead);
    }
    ahead.page = nullptr;
  }
}

TANDEM_INLINE void store_columns(float* to, Vec x, const float*) { simd::store(to, x); }
TANDEM_INLINE void store_columns(float* to, Vec pairs, const bf16*) {
  Vec even, odd;
  split_pairs(pairs, even, odd);
  simd::store(to, even);
  simd::store(to + kW, odd);
}

/// n_keys rows of K, of d numbers that fill pieces of 16 bytes, as [key / kW][d][kW] in f32.
template <class T>
TANDEM_INLINE void transpose_keys(float* to, const T* k, int d, int n_keys) {
  constexpr int kWord = int{sizeof(float) / sizeof(T)};  // numbers that move together
  const float* words = reinterpret_cast<const float*>(k);
  const int n = d / kWord;
  for (int key = 0; key < n_keys; key += kW)
    for (int c = 0; c < n; c += 4) {
      Vec r[4];
      for (int i = 0; i < 4; ++i) r[i] = simd::load_fours(words + (key + i) * n + c, n);
      transpose_fours(r);
      for (int i = 0; i < 4; ++i) store_columns(to + (key * d + (c + i) * kWord * kW), r[i], k);
    }
}

/// Rows of d numbers, `stride` apart.
template <class T>
struct Rows {
  const T* at;
  int stride;
};

/// A page whose rows vectors can take apart: itself if d fills them, or a copy in `spare`.
template <class T>
Rows<T> whole_vectors(const T* page, int d, int numbers_a_vector, int n_rows, float* spare) {
  if (d % numbers_a_vector == 0) return {page, d};
  T* copy = reinterpret_cast<T*>(spare);
  const int stride = padded_dim(d);
  for (int k = 0; k < n_rows; ++k)
    memcpy(copy + k * stride, page + k * d, sizeof(T) * static_cast<size_t>(d));
  return {copy, stride};
}

/// Keys of the page that a query sees.
inline uint64_t seen_keys(const Block& b, int query, int page) {
  const int row = b.row(query);
  switch (page_seen(*b.params, b.seq, row, row, page)) {
    case Seen::none:
      return 0;
    case Seen::all:
      return ~uint64_t{0};
    default:
      return visible_keys(*b.params, b.seq, row, page);
  }
}

/// Scores to probabilities in place; updates m, l and alpha of the query.
inline void softmax_query(const Block& b, int query, uint64_t seen) {
  float *s = b.scratch.s + query * kPageTokens, *pm = b.scratch.m + query * kW,
        *pl = b.scratch.l + query * kW;
  if (seen != ~uint64_t{0})
    for (int k = 0; k < kPageTokens; k += kW) {
      const Mask see = simd::mask_of_bits(static_cast<uint32_t>(seen >> k) & ((1u << kW) - 1u));
      simd::store(s + k, select(see, simd::load(s + k), simd::set1(kEmpty)));
    }
  Vec top = simd::load(s);
  for (int k = kW; k < kPageTokens; k += kW) top = max(top, simd::load(s + k));
  const Vec m_old = simd::load(pm), m = max(m_old, simd::set1(simd::reduce_max(top)));
  const Vec shift = finite_or_zero(m), alpha = exp2_nonpositive(m_old - shift);
  Vec sum = simd::zero();
  for (int k = 0; k < kPageTokens; k += kW) {
    const Vec p = exp2_nonpositive(simd::load(s + k) - shift);
    sum = sum + p;
    simd::store(s + k, p);
  }
  simd::store(pm, m);
  simd::store(pl, fma(simd::load(pl), alpha, simd::set1(simd::reduce_add(sum))));
  simd::store(b.scratch.alpha + query * kW, alpha);
}

/// What run_task asks of an engine: queries are [query][padded d], scores [query][64].
template <class T>
struct FewQueries {
  static constexpr int kStepPages = 1;
  static constexpr bool kFew = true;

  static void load_queries(Block& b) {
    const float scale = b.params->scale * kLog2E;
    for (int i = 0; i < b.n_queries; ++i) {
      const T* q = static_cast<const T*>(b.params->q) + b.head_at(i) * static_cast<size_t>(b.d);
      float* to = b.scratch.q + i * padded_dim(b.d);
      for (int c = 0; c < b.d; ++c) to[c] = simd::to_f32(q[c]) * scale;
    }
  }

  static void step(Block& b, int page, int) {
    uint64_t seen[kMaxFewQueries], any = 0;
    for (int i = 0; i < b.n_queries; ++i) any |= seen[i] = seen_keys(b, i, page);
    if (any == 0) return;
    scores(b, page);
    if (b.key_scores != nullptr) {
      collect_scores(b);
      write_scores(b, 0, page);
    }
    for (int i = 0; i < b.n_queries; ++i) softmax_query(b, i, seen[i]);
    accumulate(b, page);
  }

  static void scores(const Block& b, int page) {
    constexpr int kPiece = 16 / int{sizeof(T)};
    const T* k = page_of<T>(b, b.params->k_pool, page);
    const Ahead ahead{page_of<T>(b, b.params->k_pool, page + 1), b.d * int{sizeof(T)}};
    const Rows<T> keys =
        whole_vectors(k, b.d, kPiece, kPageTokens, b.scratch.k + kPageTokens * padded_dim(b.d));
    // Transposed keys stay in L1 until they are multiplied. One query needs more for its chains.
    const int n_keys = kW == 8 && b.n_queries > 1 ? 32 : kPageTokens;
    for (int key = 0; key < kPageTokens; key += n_keys) {
      ahead.fetch_rows(key, n_keys);
      transpose_keys(b.scratch.k, keys.at + key * keys.stride, keys.stride, n_keys);
      multiply_few<float>({.c = {b.scratch.s + key, kW, kPageTokens},
                           .a = {b.scratch.q, padded_dim(b.d), 1},
                           .b = {b.scratch.k, keys.stride * kW, kW},
                           .n_k = b.d},
                          n_keys / kW, b.n_queries, {});
    }
  }

  /// The largest scores of the page over all queries.
  static void collect_scores(const Block& b) {
    for (int k = 0; k < kPageTokens; k += kW) {
      Vec top = simd::set1(kEmpty);
      for (int i = 0; i < b.n_queries; ++i)
        top = max(simd::load(b.scratch.s + i * kPageTokens + k) +
                      simd::load(b.scratch.score_off + i * kW),
                  top);
      simd::store(b.scratch.top_scores + k, top);
    }
  }

  static void accumulate(const Block& b, int page) {
    const T* v = page_of<T>(b, b.params->v_pool, page);
    const int n_valid = valid_keys(b, page), n_v = (b.d + kW - 1) / kW;
    const Rows<T> values = whole_vectors(v, b.d, kW, n_valid, b.scratch.v);
    const void* next = page_of<T>(b, b.params->v_pool, page + 1);
    multiply_few<T>({.c = {b.scratch.o, kW, padded_dim(b.d)},
                     .a = {b.scratch.s, kPageTokens, 1},
                     .b = {values.at, kW, values.stride},
                     .n_k = n_valid,
                     .alpha = {b.scratch.alpha, 0, kW}},
                    n_v, b.n_queries, {next, kPageTokens * kW * int{sizeof(T)}});
  }
};

}  // namespace
}  // namespace tandem
