#pragma once
// Sums of looked-up bytes for a group of keys, for code_scan.inl: as many keys at once as a vector
// has bytes, in eight bits for kCodeDims coordinates, then in sixteen.
#include "kernels/code/code.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

constexpr int kQuads = kCodeDims / 4;  // looked up between two widenings

#if defined(TANDEM_ISA_avx512)
using Bytes = __m512i;
constexpr int kBytes = 64;
TANDEM_INLINE Bytes load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
TANDEM_INLINE Bytes no_bytes() { return _mm512_setzero_si512(); }
TANDEM_INLINE Bytes low_halves(Bytes a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
TANDEM_INLINE Bytes high_halves(Bytes a) { return low_halves(_mm512_srli_epi16(a, 4)); }
TANDEM_INLINE Bytes table_of(const uint8_t* p) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
TANDEM_INLINE Bytes add_looked_up(Bytes sum, Bytes table, Bytes at) {
  return _mm512_add_epi8(sum, _mm512_shuffle_epi8(table, at));
}
TANDEM_INLINE Bytes add_even(Bytes wide, Bytes sum) {
  return _mm512_add_epi16(wide, _mm512_and_si512(sum, _mm512_set1_epi16(255)));
}
TANDEM_INLINE Bytes add_odd(Bytes wide, Bytes sum) {
  return _mm512_add_epi16(wide, _mm512_srli_epi16(sum, 8));
}
TANDEM_INLINE void store_sums(uint16_t* p, Bytes a) { _mm512_storeu_si512(p, a); }

TANDEM_INLINE Vec of_sums(const uint16_t* p) {
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))))};
}
TANDEM_INLINE Vec of_scales(const uint8_t* p) {
  const __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm512_castsi512_ps(
      _mm512_add_epi32(_mm512_slli_epi32(x, 18), _mm512_set1_epi32(kScaleBits)))};
}
TANDEM_INLINE Vec of_shares(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}

#elif defined(TANDEM_ISA_avx2)
using Bytes = __m256i;
constexpr int kBytes = 32;
TANDEM_INLINE Bytes load_bytes(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
TANDEM_INLINE Bytes no_bytes() { return _mm256_setzero_si256(); }
TANDEM_INLINE Bytes low_halves(Bytes a) { return _mm256_and_si256(a, _mm256_set1_epi8(15)); }
TANDEM_INLINE Bytes high_halves(Bytes a) { return low_halves(_mm256_srli_epi16(a, 4)); }
TANDEM_INLINE Bytes table_of(const uint8_t* p) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
TANDEM_INLINE Bytes add_looked_up(Bytes sum, Bytes table, Bytes at) {
  return _mm256_add_epi8(sum, _mm256_shuffle_epi8(table, at));
}
TANDEM_INLINE Bytes add_even(Bytes wide, Bytes sum) {
  return _mm256_add_epi16(wide, _mm256_and_si256(sum, _mm256_set1_epi16(255)));
}
TANDEM_INLINE Bytes add_odd(Bytes wide, Bytes sum) {
  return _mm256_add_epi16(wide, _mm256_srli_epi16(sum, 8));
}
TANDEM_INLINE void store_sums(uint16_t* p, Bytes a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a);
}

TANDEM_INLINE Vec of_sums(const uint16_t* p) {
  return {_mm256_cvtepi32_ps(
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
TANDEM_INLINE Vec of_scales(const uint8_t* p) {
  const __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_slli_epi32(x, 18), _mm256_set1_epi32(kScaleBits)))};
}
TANDEM_INLINE Vec of_shares(const uint8_t* p) {
  return {_mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}

#else
/// Two neighbouring bytes, as any 16 bits of a vector hold.
struct Bytes {
  uint16_t low, high;
};
constexpr int kBytes = 2;
TANDEM_INLINE Bytes load_bytes(const uint8_t* p) { return {p[0], p[1]}; }
TANDEM_INLINE Bytes no_bytes() { return {0, 0}; }
TANDEM_INLINE Bytes low_halves(Bytes a) {
  return {static_cast<uint16_t>(a.low & 15), static_cast<uint16_t>(a.high & 15)};
}
TANDEM_INLINE Bytes high_halves(Bytes a) {
  return {static_cast<uint16_t>(a.low >> 4), static_cast<uint16_t>(a.high >> 4)};
}
TANDEM_INLINE const uint8_t* table_of(const uint8_t* p) { return p; }
TANDEM_INLINE Bytes add_looked_up(Bytes sum, const uint8_t* table, Bytes at) {
  return {static_cast<uint16_t>(sum.low + table[at.low]),
          static_cast<uint16_t>(sum.high + table[at.high])};
}
TANDEM_INLINE Bytes add_even(Bytes wide, Bytes sum) {
  return {static_cast<uint16_t>(wide.low + sum.low), 0};
}
TANDEM_INLINE Bytes add_odd(Bytes wide, Bytes sum) {
  return {static_cast<uint16_t>(wide.low + sum.high), 0};
}
TANDEM_INLINE void store_sums(uint16_t* p, Bytes a) { *p = a.low; }

TANDEM_INLINE Vec of_sums(const uint16_t* p) { return {static_cast<float>(*p)}; }
TANDEM_INLINE Vec of_scales(const uint8_t* p) { return {code_scale(*p)}; }
TANDEM_INLINE Vec of_shares(const uint8_t* p) {
  return {static_cast<float>(static_cast<int8_t>(*p))};
}
#endif

}  // namespace
}  // namespace tandem
