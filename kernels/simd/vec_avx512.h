#pragma once
// Vec of sixteen lanes for AVX-512 F, BW, VL, DQ, with the bf16 conversion of AVX512-BF16 where it
// is there. Part of vec.h; see there.
#include <immintrin.h>

namespace tandem::simd {
namespace {

struct Vec {
  static constexpr int kLanes = 16;
  __m512 v;
};
struct Mask {
  __mmask16 v;
};

TANDEM_INLINE Vec set1(float x) { return {_mm512_set1_ps(x)}; }
TANDEM_INLINE Vec zero() { return {_mm512_setzero_ps()}; }
TANDEM_INLINE Mask first_lanes(int n) {
  return {static_cast<__mmask16>((1u << static_cast<unsigned>(n)) - 1u)};
}

/// bf16 bits of the sixteen lanes, rounded to nearest even; NaN stays NaN.
TANDEM_INLINE __m256i round_bf16(__m512 a) {
#ifdef TANDEM_ISA_avx512
  const __m512i u = _mm512_castps_si512(a);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
  r = _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x00400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16));
#else
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a));
#endif
}
TANDEM_INLINE __m512 widen_bf16(__m256i a) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(a), 16));
}

TANDEM_INLINE Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
TANDEM_INLINE Vec load(const bf16* p) {
  return {widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
TANDEM_INLINE Vec load(const f16* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
TANDEM_INLINE void store(f16* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
TANDEM_INLINE void split_pairs(Vec pairs, Vec& even, Vec& odd) {
  const __m512i bits = _mm512_castps_si512(pairs.v);
  even = {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16))};
  odd = {_mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(-0x10000)))};
}
TANDEM_INLINE void join_pairs(Vec even, Vec odd, Vec& first, Vec& second) {
  const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  first = {_mm512_permutex2var_ps(even.v, low, odd.v)};
  second = {_mm512_permutex2var_ps(even.v, high, odd.v)};
}
TANDEM_INLINE void load_even_odd(const bf16* p, Vec& even, Vec& odd) {
  split_pairs({_mm512_loadu_ps(reinterpret_cast<const float*>(p))}, even, odd);
}
TANDEM_INLINE Vec widen_int8(__m128i a) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(a))}; }
TANDEM_INLINE Vec load(const int8_t* p) {
  return widen_int8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
TANDEM_INLINE Vec load_n(const int8_t* p, int n) {
  return widen_int8(_mm_maskz_loadu_epi8(first_lanes(n).v, p));
}
TANDEM_INLINE void store(int8_t* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v)));
}
TANDEM_INLINE void store_n(int8_t* p, Vec a, int n) {
  _mm_mask_storeu_epi8(p, first_lanes(n).v, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v)));
}
TANDEM_INLINE Vec load_n(const float* p, int n) {
  return {_mm512_maskz_loadu_ps(first_lanes(n).v, p)};
}
TANDEM_INLINE Vec load_n(const bf16* p, int n) {
  return {widen_bf16(_mm256_maskz_loadu_epi16(first_lanes(n).v, p))};
}
TANDEM_INLINE void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
TANDEM_INLINE void store(bf16* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), round_bf16(a.v));
}
TANDEM_INLINE void store_n(float* p, Vec a, int n) {
  _mm512_mask_storeu_ps(p, first_lanes(n).v, a.v);
}
TANDEM_INLINE void store_n(bf16* p, Vec a, int n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n).v, round_bf16(a.v));
}

TANDEM_INLINE Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
TANDEM_INLINE Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
TANDEM_INLINE Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
TANDEM_INLINE Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
TANDEM_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
TANDEM_INLINE Vec fnma(Vec a, Vec b, Vec c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
TANDEM_INLINE Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
TANDEM_INLINE Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
TANDEM_INLINE Vec sqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }
TANDEM_INLINE Vec abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
TANDEM_INLINE Vec round(Vec a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

TANDEM_INLINE Mask lt(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
TANDEM_INLINE Mask mask_of_bits(uint32_t bits) { return {static_cast<__mmask16>(bits)}; }
TANDEM_INLINE uint32_t bits_of(Mask m) { return m.v; }
TANDEM_INLINE Mask operator&(Mask a, Mask b) { return {static_cast<__mmask16>(a.v & b.v)}; }
TANDEM_INLINE Mask operator|(Mask a, Mask b) { return {static_cast<__mmask16>(a.v | b.v)}; }
TANDEM_INLINE Vec select(Mask m, Vec a, Vec b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }

TANDEM_INLINE float reduce_add(Vec a) { return _mm512_reduce_add_ps(a.v); }
TANDEM_INLINE float reduce_max(Vec a) { return _mm512_reduce_max_ps(a.v); }

/// Halves the lanes in turn: of two vectors' pairs, of four's, then whole quarters.
TANDEM_INLINE Vec max_of_each(Vec (&r)[16]) {
  __m512 q[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const auto pair = [&](int j) {
      return _mm512_castps_pd(_mm512_max_ps(_mm512_unpacklo_ps(r[j].v, r[j + 1].v),
                                            _mm512_unpackhi_ps(r[j].v, r[j + 1].v)));
    };
    const __m512d a = pair(4 * i), b = pair(4 * i + 2);
    q[i] = _mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  const auto halves = [](__m512 a, __m512 b) {
    return _mm512_max_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  };
  const __m512 a = halves(q[0], q[1]), b = halves(q[2], q[3]);
  return {_mm512_max_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd))};
}

/// p * 2^n for integral n; subnormal results and inf come out.
TANDEM_INLINE Vec scale2(Vec p, Vec n) { return {_mm512_scalef_ps(p.v, n.v)}; }

/// The number whose exponent field, and nothing else, is the low 8 bits of a's mantissa.
TANDEM_INLINE Vec low_bits_as_exponent(Vec a) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.v), 23))};
}

TANDEM_INLINE Vec load_fours(const float* p, int stride) {
  __m512 r = _mm512_castps128_ps512(_mm_loadu_ps(p));
  r = _mm512_insertf32x4(r, _mm_loadu_ps(p + 4 * stride), 1);
  r = _mm512_insertf32x4(r, _mm_loadu_ps(p + 8 * stride), 2);
  return {_mm512_insertf32x4(r, _mm_loadu_ps(p + 12 * stride), 3)};
}
TANDEM_INLINE void transpose_fours(Vec (&r)[4]) {
  const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(r[0].v, r[1].v));
  const __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(r[0].v, r[1].v));
  const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(r[2].v, r[3].v));
  const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(r[2].v, r[3].v));
  r[0].v = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
  r[1].v = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
  r[2].v = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
  r[3].v = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
}

}  // namespace
}  // namespace tandem::simd
