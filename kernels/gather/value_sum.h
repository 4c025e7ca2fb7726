#pragma once
// Weighted sum of scattered values, one pass over the rows. Included by attend_list.inl only.
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using simd::Vec;

/// Consecutive elements of the output in registers: how they come from memory, take up weight times
/// a row's elements, and go back. The _n forms are for the rest of a row.
template <class T>
struct Slice {
  static constexpr int kWidth = Vec::kLanes;
  Vec sum;
  TANDEM_INLINE void from(const float* o, Vec alpha) { sum = simd::load(o) * alpha; }
  TANDEM_INLINE void from_n(const float* o, Vec alpha, int n) { sum = simd::load_n(o, n) * alpha; }
  TANDEM_INLINE void add(Vec weight, const T* v) { sum = fma(weight, simd::load(v), sum); }
  TANDEM_INLINE void add_n(Vec weight, const T* v, int n) {
    sum = fma(weight, simd::load_n(v, n), sum);
  }
  TANDEM_INLINE void to(float* o) const { simd::store(o, sum); }
  TANDEM_INLINE void to_n(float* o, int n) const { simd::store_n(o, sum, n); }
};

#if defined(TANDEM_ISA_avx512) || defined(TANDEM_ISA_avx512_bf16)
/// A dword holds an even and an odd element, each one cheap operation from f32: half the loads and
/// none of the shuffles of widening. Even and odd sums part on the way in and meet on the way out.
template <>
struct Slice<bf16> {
  static constexpr int kWidth = 2 * Vec::kLanes;
  Vec even, odd;

  TANDEM_INLINE void part(Vec low, Vec high, Vec alpha) {
    const __m512i evens =
        _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
    even = Vec{_mm512_permutex2var_ps(low.v, evens, high.v)} * alpha;
    odd = Vec{_mm512_permutex2var_ps(low.v, odds, high.v)} * alpha;
  }
  TANDEM_INLINE void add_pairs(Vec weight, __m512i pairs) {
    even = fma(weight, Vec{_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))}, even);
    const __m512i top = _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
    odd = fma(weight, Vec{_mm512_castsi512_ps(top)}, odd);
  }
  static TANDEM_INLINE int low_n(int n) { return n < Vec::kLanes ? n : Vec::kLanes; }

  TANDEM_INLINE void from(const float* o, Vec alpha) {
    part(simd::load(o), simd::load(o + Vec::kLanes), alpha);
  }
  TANDEM_INLINE void from_n(const float* o, Vec alpha, int n) {
    part(simd::load_n(o, low_n(n)), simd::load_n(o + low_n(n), n - low_n(n)), alpha);
  }
  TANDEM_INLINE void add(Vec weight, const bf16* v) { add_pairs(weight, _mm512_loadu_si512(v)); }
  TANDEM_INLINE void add_n(Vec weight, const bf16* v, int n) {
    add_pairs(weight, _mm512_maskz_loadu_epi16((1u << n) - 1u, v));
  }
  TANDEM_INLINE void to(float* o) const {
    Vec low, high;
    simd::join_pairs(even, odd, low, high);
    simd::store(o, low);
    simd::store(o + Vec::kLanes, high);
  }
  TANDEM_INLINE void to_n(float* o, int n) const {
    Vec low, high;
    simd::join_pairs(even, odd, low, high);
    simd::store_n(o, low, low_n(n));
    simd::store_n(o + low_n(n), high, n - low_n(n));
  }
};
#endif

/// Registers' worth of output for one pass: 128 elements of bf16 or f32 on AVX-512.
template <class T>
constexpr int kSlices = 8 * Vec::kLanes / Slice<T>::kWidth;

/// o = alpha o + sum of weights[i] rows[2 i] over N slices from element c on.
template <int N, class T, class Ahead>
TANDEM_INLINE void add_slices(float* o, int c, Vec alpha, const float* weights,
                              const T* const* rows, int n, Ahead& ahead) {
  constexpr int kWidth = Slice<T>::kWidth;
  Slice<T> slice[N];
#pragma GCC unroll 8
  for (int j = 0; j < N; ++j) slice[j].from(o + c + j * kWidth, alpha);
  for (int i = 0; i < n; ++i) {
    ahead.next();
    const Vec weight = simd::set1(weights[i]);
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) slice[j].add(weight, rows[2 * i] + c + j * kWidth);
  }
#pragma GCC unroll 8
  for (int j = 0; j < N; ++j) slice[j].to(o + c + j * kWidth);
}

template <class T>
TANDEM_INLINE void add_rest(float* o, int c, Vec alpha, const float* weights, const T* const* rows,
                            int n, int width) {
  Slice<T> slice;
  slice.from_n(o + c, alpha, width);
  for (int i = 0; i < n; ++i) slice.add_n(simd::set1(weights[i]), rows[2 * i] + c, width);
  slice.to_n(o + c, width);
}

/// o = alpha o + sum of weights[i] rows[2 i]; ahead.next() is called for every row.
template <class T, class Ahead>
TANDEM_INLINE void add_values(float* o, int d, Vec alpha, const float* weights,
                              const T* const* rows, int n, Ahead& ahead) {
  constexpr int kWidth = Slice<T>::kWidth, kMost = kSlices<T>, kHalf = kMost / 2;
  int c = 0;
  for (; c + kMost * kWidth <= d; c += kMost * kWidth)
    add_slices<kMost>(o, c, alpha, weights, rows, n, ahead);
  if (c + kHalf * kWidth <= d) {
    add_slices<kHalf>(o, c, alpha, weights, rows, n, ahead);
    c += kHalf * kWidth;
  }
  for (; c + kWidth <= d; c += kWidth) add_slices<1>(o, c, alpha, weights, rows, n, ahead);
  if (c < d) add_rest(o, c, alpha, weights, rows, n, d - c);
}

}  // namespace
}  // namespace tandem
