#pragma once
// The multiply of a few queries on pairs of bf16 (vdpbf16ps): along d for scores, of two keys for
// values. Chains are those of engine_bf16.h. Needs an even head_dim.
#include "kernels/attention/engine_bf16.h"
#include "kernels/attention/few_queries.h"

namespace tandem {
namespace {

/// Two rows of 32 numbers as pairs, low and high halves of each 128 bits apart.
TANDEM_INLINE void pair_rows(const bf16* row, const bf16* next, Vec (&part)[2]) {
  const __m512i a = _mm512_loadu_si512(row), b = _mm512_loadu_si512(next);
  part[0] = {_mm512_castsi512_ps(_mm512_unpacklo_epi16(a, b))};
  part[1] = {_mm512_castsi512_ps(_mm512_unpackhi_epi16(a, b))};
}

/// The sums of pair_rows in the order of the channels.
TANDEM_INLINE void order_paired(Vec (&sum)[2]) {
  const __m512i low = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  const Vec a = sum[0], b = sum[1];
  sum[0] = {_mm512_permutex2var_ps(a.v, low, b.v)};
  sum[1] = {_mm512_permutex2var_ps(a.v, high, b.v)};
}

/// n f32 numbers, a multiple of 32, as bf16.
TANDEM_INLINE void narrow_row(float* to, const float* from, int n) {
  for (int k = 0; k < n; k += 2 * kW) {
    const __m512bh both = _mm512_cvtne2ps_pbh(simd::load(from + k + kW).v, simd::load(from + k).v);
    _mm512_storeu_si512(to + k / 2, reinterpret_cast<__m512i>(both));
  }
}

struct InPairs {
  using Element = bf16;
  static constexpr int kNumbers = 2, kFactors = 1, kSums = 2, kKeys = 2;
  static constexpr bool kScaledQueries = false;

  static TANDEM_INLINE Vec exp2_score(Vec x) { return fast_exp2(x); }

  static void load_query(float* to, const bf16* q, int d, float) {
    memcpy(to, q, sizeof(bf16) * static_cast<size_t>(d));
  }

  static TANDEM_INLINE void key_parts(Vec words, Vec (&part)[kFactors]) { part[0] = words; }
  static TANDEM_INLINE void value_parts(const bf16* row, const bf16* next, Vec (&part)[kSums]) {
    pair_rows(row, next, part);
  }
  static TANDEM_INLINE Vec add(Vec sum, Vec factor, Vec part) {
    return {_mm512_dpbf16_ps(sum.v, as_bf16(_mm512_castps_si512(factor.v)),
                             as_bf16(_mm512_castps_si512(part.v)))};
  }

  static const float* factors(const Block& b) {
    for (int i = 0; i < b.n_queries; ++i)
      narrow_row(b.scratch.p + i * kPageTokens / 2, b.scratch.s + i * kPageTokens, kPageTokens);
    return b.scratch.p;
  }

  static TANDEM_INLINE void order(Vec (&sum)[kSums]) { order_paired(sum); }
};

}  // namespace
}  // namespace tandem
