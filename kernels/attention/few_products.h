#pragma once
// Products of a page of keys or values with a few queries, a tile of sums in registers. Rows are
// read by words of four bytes, one f32 or two bf16. Included by ISA files that have vectors only.
#include "kernels/attention/block.h"

namespace tandem {
namespace {

/// Memory to be read soon, fetched into L2 line by line while other memory is worked on: evenly,
/// because a core has few lines on their way at a time and memory stands still without any.
struct Lines {
  const char *at, *end;
  template <class T>
  Lines(const T* first, int n)
      : at(reinterpret_cast<const char*>(first)),
        end(first == nullptr ? at : reinterpret_cast<const char*>(first + n)) {}
  TANDEM_INLINE void fetch(int n) {
    if (at >= end) return;
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) __builtin_prefetch(at + i * 64, 0, 2);
    at += n * 64;
  }
};

/// Multiply-adds in f32 of numbers stored as T; a sum's chain is that of engine_f32.h.
template <class T>
struct InF32 {
  using Element = T;
  static constexpr int kNumbers = int{sizeof(float) / sizeof(T)};  // of a word
  static constexpr int kFactors = kNumbers;                        // of a query for a word of a key
  static constexpr int kSums = kNumbers;  // vectors that a vector of words of values adds to
  static constexpr int kKeys = 1;         // that a probability is of
  static constexpr bool kScaledQueries = true;

  static TANDEM_INLINE Vec exp2_score(Vec x) { return exp2_nonpositive(x); }

  static void load_query(float* to, const T* q, int d, float scale) {
    for (int c = 0; c < d; ++c) to[c] = simd::to_f32(q[c]) * scale;
  }

  static TANDEM_INLINE void parts(Vec words, Vec (&part)[kNumbers]) {
    if constexpr (kNumbers == 1)
      part[0] = words;
    else
      split_pairs(words, part[0], part[1]);
  }
  static TANDEM_INLINE void key_parts(Vec words, Vec (&part)[kFactors]) { parts(words, part); }
  static TANDEM_INLINE void value_parts(const T* row, const T*, Vec (&part)[kSums]) {
    parts(simd::load(reinterpret_cast<const float*>(row)), part);
  }
  static TANDEM_INLINE Vec add(Vec sum, Vec factor, Vec part) { return fma(factor, part, sum); }

  /// Probabilities of a page as factors: as they are.
  static const float* factors(const Block& b) { return b.scratch.s; }

  /// Sums of a vector of words of values, in the order of the channels.
  static TANDEM_INLINE void order(Vec (&sum)[kSums]) {
    if constexpr (kSums == 2) simd::join_pairs(sum[0], sum[1], sum[0], sum[1]);
  }
};

/// Rows of numbers, `stride` apart.
template <class T>
struct Rows {
  const T* at;
  int stride;
};

/// A page whose rows vectors can take apart: itself if d fills them, or a copy with zeros in
/// `spare`.
template <class T>
Rows<T> whole_vectors(const T* page, int d, int numbers_a_vector, int n_rows, float* spare) {
  if (d % numbers_a_vector == 0) return {page, d};
  T* copy = reinterpret_cast<T*>(spare);
  const int stride = padded_dim(d);
  memset(copy, 0, sizeof(T) * static_cast<size_t>(n_rows * stride));
  for (int k = 0; k < n_rows; ++k)
    memcpy(copy + k * stride, page + k * d, sizeof(T) * static_cast<size_t>(d));
  return {copy, stride};
}

/// n_keys rows of n words, n a multiple of 4, as [key / kW][n][kW]. Fetches a line with every 16
/// keys and 4 words.
TANDEM_INLINE void transpose_words(float* to, const float* rows, int n, int n_keys, Lines& ahead) {
  for (int key = 0; key < n_keys; key += kW)
    for (int w = 0; w < n; w += 4) {
      if (key % 16 == 0) ahead.fetch(1);
      Vec r[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) r[i] = simd::load_fours(rows + (key + i) * n + w, n);
      transpose_fours(r);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) simd::store(to + key * n + (w + i) * kW, r[i]);
    }
}

/// Scores of up to 64 keys: s[query * kPageTokens + key].
struct ScoreProduct {
  float* s;
  const float* words;  // [key / kW][n_words][kW]
  const float* q;      // [query][q_stride] factors
  int n_words, q_stride;
};

/// Those of NV vectors of keys from vector v on and NI queries from i on. Fetches three lines with
/// every 16 keys and 4 words: with those of transpose_words as many bytes as the keys have.
template <class M, int NV, int NI>
TANDEM_INLINE void score_tile(const ScoreProduct& p, int v, int i, Lines& ahead) {
  constexpr int kF = M::kFactors;
  Vec sum[NV][NI];
#pragma GCC unroll 16
  for (int j = 0; j < NV; ++j)
#pragma GCC unroll 16
    for (int k = 0; k < NI; ++k) sum[j][k] = simd::zero();
  const float *words = p.words + v * p.n_words * kW, *q = p.q + i * p.q_stride;
  const auto parts = [&](int j, int w, Vec(&part)[kF]) {
    M::key_parts(simd::load(words + (j * p.n_words + w) * kW), part);
  };
  for (int four = 0; four < p.n_words; four += 4) {
    ahead.fetch(3 * NV * kW / 16);
#pragma GCC unroll 4
    for (int w = four; w < four + 4; ++w) {
      // Operands of the shorter side stay in registers while those of the other pass through one.
      if constexpr (NI < NV) {
#pragma GCC unroll 2
        for (int f = 0; f < kF; ++f) {
          Vec factor[NI];
#pragma GCC unroll 16
          for (int k = 0; k < NI; ++k) factor[k] = simd::set1(q[k * p.q_stride + w * kF + f]);
#pragma GCC unroll 16
          for (int j = 0; j < NV; ++j) {
            Vec part[kF];
            parts(j, w, part);
#pragma GCC unroll 16
            for (int k = 0; k < NI; ++k) sum[j][k] = M::add(sum[j][k], factor[k], part[f]);
          }
        }
      } else {
        Vec part[NV][kF];
#pragma GCC unroll 16
        for (int j = 0; j < NV; ++j) parts(j, w, part[j]);
#pragma GCC unroll 2
        for (int f = 0; f < kF; ++f)
#pragma GCC unroll 16
          for (int k = 0; k < NI; ++k) {
            const Vec factor = simd::set1(q[k * p.q_stride + w * kF + f]);
#pragma GCC unroll 16
            for (int j = 0; j < NV; ++j) sum[j][k] = M::add(sum[j][k], factor, part[j][f]);
          }
      }
    }
  }
#pragma GCC unroll 16
  for (int j = 0; j < NV; ++j)
#pragma GCC unroll 16
    for (int k = 0; k < NI; ++k) simd::store(p.s + (i + k) * kPageTokens + (v + j) * kW, sum[j][k]);
}

/// o = alpha o + sum over keys of their factors times their values. A query's part of o holds the
/// sums of each vector of words one after the other.
template <class M>
struct ValueProduct {
  float* o;            // [query][o_stride]
  const float* alpha;  // [query][kW]
  const float* p;      // [query][kPageTokens / kKeys] factors
  Rows<typename M::Element> values;
  int o_stride, n_keys;
};

/// Those of NG vectors of words from vector g on and NI queries from i on. Fetches as many bytes as
/// it reads.
template <class M, int NG, int NI>
TANDEM_INLINE void value_tile(const ValueProduct<M>& p, int g, int i, Lines& ahead) {
  constexpr int kS = M::kSums, kWidth = kW * M::kNumbers;
  float* o = p.o + i * p.o_stride + g * kS * kW;
  Vec sum[NG][NI][kS];
#pragma GCC unroll 16
  for (int k = 0; k < NI; ++k) {
    const Vec alpha = simd::load(p.alpha + (i + k) * kW);
#pragma GCC unroll 16
    for (int j = 0; j < NG; ++j)
#pragma GCC unroll 2
      for (int s = 0; s < kS; ++s)
        sum[j][k][s] = simd::load(o + k * p.o_stride + (j * kS + s) * kW) * alpha;
  }
  const typename M::Element* row = p.values.at + g * kWidth;
  const float* factors = p.p + i * (kPageTokens / M::kKeys);
  // A step of kKeys keys at `row`; the second may be given apart.
  const auto add = [&](const typename M::Element* first, const typename M::Element* second,
                       const float* factor_at) {
    if constexpr (NI < NG * kS) {
      Vec factor[NI];
#pragma GCC unroll 16
      for (int k = 0; k < NI; ++k) factor[k] = simd::set1(factor_at[k * (kPageTokens / M::kKeys)]);
#pragma GCC unroll 16
      for (int j = 0; j < NG; ++j) {
        Vec part[kS];
        M::value_parts(first + j * kWidth, second + j * kWidth, part);
#pragma GCC unroll 2
        for (int s = 0; s < kS; ++s)
#pragma GCC unroll 16
          for (int k = 0; k < NI; ++k) sum[j][k][s] = M::add(sum[j][k][s], factor[k], part[s]);
      }
    } else {
      Vec part[NG][kS];
#pragma GCC unroll 16
      for (int j = 0; j < NG; ++j) M::value_parts(first + j * kWidth, second + j * kWidth, part[j]);
#pragma GCC unroll 16
      for (int k = 0; k < NI; ++k) {
        const Vec factor = simd::set1(factor_at[k * (kPageTokens / M::kKeys)]);
#pragma GCC unroll 16
        for (int j = 0; j < NG; ++j)
#pragma GCC unroll 2
          for (int s = 0; s < kS; ++s) sum[j][k][s] = M::add(sum[j][k][s], factor, part[j][s]);
      }
    }
  };
  const int stride = p.values.stride;
  int key = 0;
  for (; key + 2 <= p.n_keys; key += 2, row += 2 * stride, factors += 2 / M::kKeys) {
    ahead.fetch(2 * NG * kW * int{sizeof(float)} / 64);
    add(row, row + stride, factors);
    if constexpr (M::kKeys == 1) add(row + stride, row + stride, factors + 1);
  }
  if (key < p.n_keys) {
    alignas(64) const typename M::Element none[M::kKeys == 2 ? NG * kWidth : 1] = {};
    add(row, M::kKeys == 2 ? none : row, factors);
  }
#pragma GCC unroll 16
  for (int k = 0; k < NI; ++k)
#pragma GCC unroll 16
    for (int j = 0; j < NG; ++j)
#pragma GCC unroll 2
      for (int s = 0; s < kS; ++s)
        simd::store(o + k * p.o_stride + (j * kS + s) * kW, sum[j][k][s]);
}

}  // namespace
}  // namespace tandem
