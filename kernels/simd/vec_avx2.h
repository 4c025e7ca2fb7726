#pragma once
// Vec of eight lanes for AVX2 with FMA. Part of vec.h; see there.
#include <immintrin.h>

namespace tandem::simd {
namespace {

struct Vec {
  static constexpr int kLanes = 8;
  __m256 v;
};
struct Mask {
  __m256 v;  // all bits of a lane set or clear
};

TANDEM_INLINE Vec set1(float x) { return {_mm256_set1_ps(x)}; }
TANDEM_INLINE Vec zero() { return {_mm256_setzero_ps()}; }
TANDEM_INLINE Mask first_lanes(int n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane))};
}

/// bf16 bits of the eight lanes, rounded to nearest even; NaN stays NaN.
TANDEM_INLINE __m128i round_bf16(__m256 a) {
  const __m256i u = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  r = _mm256_blendv_epi8(r, _mm256_or_si256(u, _mm256_set1_epi32(0x00400000)), nan);
  r = _mm256_srli_epi32(r, 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}

TANDEM_INLINE Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
TANDEM_INLINE Vec load(const bf16* p) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))};
}
TANDEM_INLINE Vec load(const f16* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
TANDEM_INLINE void store(f16* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
TANDEM_INLINE void split_pairs(Vec pairs, Vec& even, Vec& odd) {
  const __m256i bits = _mm256_castps_si256(pairs.v);
  even = {_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16))};
  odd = {_mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(-0x10000)))};
}
TANDEM_INLINE void join_pairs(Vec even, Vec odd, Vec& first, Vec& second) {
  const __m256 low = _mm256_unpacklo_ps(even.v, odd.v), high = _mm256_unpackhi_ps(even.v, odd.v);
  first = {_mm256_permute2f128_ps(low, high, 0x20)};
  second = {_mm256_permute2f128_ps(low, high, 0x31)};
}
TANDEM_INLINE void load_even_odd(const bf16* p, Vec& even, Vec& odd) {
  split_pairs({_mm256_loadu_ps(reinterpret_cast<const float*>(p))}, even, odd);
}
TANDEM_INLINE void store(float* p, Vec a) { _mm256_storeu_ps(p, a.v); }
TANDEM_INLINE void store(bf16* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), round_bf16(a.v));
}
TANDEM_INLINE Vec load(const int8_t* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))};
}
TANDEM_INLINE void store(int8_t* p, Vec a) {
  const __m256i whole = _mm256_cvtps_epi32(a.v);
  const __m128i half =
      _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(half, half));
}
TANDEM_INLINE Vec load_n(const float* p, int n) {
  return {_mm256_maskload_ps(p, _mm256_castps_si256(first_lanes(n).v))};
}
// AVX2 has no masked moves of 16 or 8 bits: remainders go through a buffer.
template <class T>
TANDEM_INLINE Vec load_n(const T* p, int n) {
  T buffer[8] = {};
  for (int i = 0; i < n; ++i) buffer[i] = p[i];
  return load(buffer);
}
TANDEM_INLINE void store_n(float* p, Vec a, int n) {
  _mm256_maskstore_ps(p, _mm256_castps_si256(first_lanes(n).v), a.v);
}
template <class T>
TANDEM_INLINE void store_n(T* p, Vec a, int n) {
  T buffer[8];
  store(buffer, a);
  for (int i = 0; i < n; ++i) p[i] = buffer[i];
}

TANDEM_INLINE Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
TANDEM_INLINE Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
TANDEM_INLINE Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
TANDEM_INLINE Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
TANDEM_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
TANDEM_INLINE Vec fnma(Vec a, Vec b, Vec c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }
TANDEM_INLINE Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
TANDEM_INLINE Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
TANDEM_INLINE Vec sqrt(Vec a) { return {_mm256_sqrt_ps(a.v)}; }
TANDEM_INLINE Vec abs(Vec a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
TANDEM_INLINE Vec round(Vec a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

TANDEM_INLINE Mask lt(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
TANDEM_INLINE Mask mask_of_bits(uint32_t bits) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i hit = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), bit);
  return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(hit, bit))};
}
TANDEM_INLINE uint32_t bits_of(Mask m) { return static_cast<uint32_t>(_mm256_movemask_ps(m.v)); }
TANDEM_INLINE Mask operator&(Mask a, Mask b) { return {_mm256_and_ps(a.v, b.v)}; }
TANDEM_INLINE Mask operator|(Mask a, Mask b) { return {_mm256_or_ps(a.v, b.v)}; }
TANDEM_INLINE Vec select(Mask m, Vec a, Vec b) { return {_mm256_blendv_ps(b.v, a.v, m.v)}; }

TANDEM_INLINE float reduce_add(Vec a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
TANDEM_INLINE float reduce_max(Vec a) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

/// Halves the lanes in turn: of two vectors' pairs, of four's, then whole halves.
TANDEM_INLINE Vec max_of_each(Vec (&r)[8]) {
  __m256 q[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const auto pair = [&](int j) {
      return _mm256_castps_pd(_mm256_max_ps(_mm256_unpacklo_ps(r[j].v, r[j + 1].v),
                                            _mm256_unpackhi_ps(r[j].v, r[j + 1].v)));
    };
    const __m256d a = pair(4 * i), b = pair(4 * i + 2);
    q[i] = _mm256_max_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)),
                         _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
  }
  return {_mm256_max_ps(_mm256_permute2f128_ps(q[0], q[1], 0x20),
                        _mm256_permute2f128_ps(q[0], q[1], 0x31))};
}

/// p * 2^n for integral |n| <= 160, in two steps so that subnormal results and inf come out.
TANDEM_INLINE Vec scale2(Vec p, Vec n) {
  const __m256i whole = _mm256_cvtps_epi32(n.v), half = _mm256_srai_epi32(whole, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i b = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23);
  return {_mm256_mul_ps(_mm256_mul_ps(p.v, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b))};
}

/// The number whose exponent field, and nothing else, is the low 8 bits of a's mantissa.
TANDEM_INLINE Vec low_bits_as_exponent(Vec a) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a.v), 23))};
}

TANDEM_INLINE Vec load_fours(const float* p, int stride) {
  return {_mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)),
                               _mm_loadu_ps(p + 4 * stride), 1)};
}
TANDEM_INLINE void transpose_fours(Vec (&r)[4]) {
  const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(r[0].v, r[1].v));
  const __m256d b = _mm256_castps_pd(_mm256_unpackhi_ps(r[0].v, r[1].v));
  const __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(r[2].v, r[3].v));
  const __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(r[2].v, r[3].v));
  r[0].v = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
  r[1].v = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
  r[2].v = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
  r[3].v = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
}

}  // namespace
}  // namespace tandem::simd
