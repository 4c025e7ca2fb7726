#pragma once
// Products of one query with a group of scattered keys. Included by attend_list.inl only.
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using simd::Vec;

/// Keys of a group: one sum each in registers, enough of them to hide the latency of the adds.
constexpr int kGroup = Vec::kLanes < 4 ? 4 : Vec::kLanes;

/// to[i] = sum of the lanes of a[i]: halves of two vectors meet in one add, so that a group takes
/// one tree instead of one a key.
TANDEM_INLINE void store_sums(float* to, const Vec (&a)[kGroup]) {
#if defined(TANDEM_ISA_scalar)
  for (int i = 0; i < kGroup; ++i) to[i] = a[i].v;
#elif defined(TANDEM_ISA_avx2)
  const auto quarter = [&](int i) {
    return _mm256_hadd_ps(_mm256_hadd_ps(a[i].v, a[i + 1].v),
                          _mm256_hadd_ps(a[i + 2].v, a[i + 3].v));
  };
  const __m256 low = quarter(0), high = quarter(4);
  _mm256_storeu_ps(to, _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20),
                                     _mm256_permute2f128_ps(low, high, 0x31)));
#else
  __m512 by4[4];  // by4[i]: four partial sums of each of the keys i, i + 4, i + 8, i + 12
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 x = _mm512_add_ps(_mm512_shuffle_f32x4(a[i].v, a[i + 4].v, 0x44),
                                   _mm512_shuffle_f32x4(a[i].v, a[i + 4].v, 0xee));
    const __m512 y = _mm512_add_ps(_mm512_shuffle_f32x4(a[i + 8].v, a[i + 12].v, 0x44),
                                   _mm512_shuffle_f32x4(a[i + 8].v, a[i + 12].v, 0xee));
    by4[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
  }
  const __m512 x =
      _mm512_add_ps(_mm512_unpacklo_ps(by4[0], by4[1]), _mm512_unpackhi_ps(by4[0], by4[1]));
  const __m512 y =
      _mm512_add_ps(_mm512_unpacklo_ps(by4[2], by4[3]), _mm512_unpackhi_ps(by4[2], by4[3]));
  _mm512_storeu_ps(to, _mm512_add_ps(_mm512_shuffle_ps(x, y, 0x44), _mm512_shuffle_ps(x, y, 0xee)));
#endif
}

/// Elements of a row that one step multiplies, and the step: sum + the products, by lanes.
template <class T>
struct Products {
  static constexpr int kWidth = Vec::kLanes;
  using Piece = Vec;
  template <class U>  // of the query, or of a key
  static TANDEM_INLINE Piece piece(const U* p) {
    return simd::load(p);
  }
  template <class U>
  static TANDEM_INLINE Piece piece_n(const U* p, int n) {
    return simd::load_n(p, n);
  }
  static TANDEM_INLINE Vec add(Vec sum, Piece q, Piece k) { return fma(q, k, sum); }
};

#ifdef TANDEM_ISA_avx512_bf16
template <>
struct Products<bf16> {
  static constexpr int kWidth = 2 * Vec::kLanes;
  using Piece = __m512i;
  static TANDEM_INLINE Piece piece(const bf16* p) { return _mm512_loadu_si512(p); }
  static TANDEM_INLINE Piece piece_n(const bf16* p, int n) {
    return _mm512_maskz_loadu_epi16((1u << n) - 1u, p);
  }
  static TANDEM_INLINE Vec add(Vec sum, Piece q, Piece k) {
    return {_mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(q), reinterpret_cast<__m512bh>(k))};
  }
};
#endif

/// Keys whose rows are read side by side.
constexpr int kAbreast = 4;

/// to[i] = q . rows[2 i] for a group of keys; ahead.next() is called for each, spread over the
/// work.
template <class T, class Q, class Ahead>
TANDEM_INLINE void key_dots(float* to, const Q* q, const T* const* rows, int d, Ahead& ahead) {
  using P = Products<T>;
  Vec sum[kGroup];
#pragma GCC unroll 4
  for (int first = 0; first < kGroup; first += kAbreast) {
    const T* row[kAbreast];
#pragma GCC unroll 4
    for (int i = 0; i < kAbreast; ++i) {
      row[i] = rows[2 * (first + i)];
      sum[first + i] = simd::zero();
      ahead.next();
    }
    int c = 0;
    for (; c + P::kWidth <= d; c += P::kWidth) {
      const auto qc = P::piece(q + c);
#pragma GCC unroll 4
      for (int i = 0; i < kAbreast; ++i)
        sum[first + i] = P::add(sum[first + i], qc, P::piece(row[i] + c));
    }
    if (c < d) {
      const auto qc = P::piece_n(q + c, d - c);
#pragma GCC unroll 4
      for (int i = 0; i < kAbreast; ++i)
        sum[first + i] = P::add(sum[first + i], qc, P::piece_n(row[i] + c, d - c));
    }
  }
  store_sums(to, sum);
}

}  // namespace
}  // namespace tandem
