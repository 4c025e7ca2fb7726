#pragma once
// Vector functions of attend_coded.inl that vec.h lacks: 16-bit numbers out, pairs of f16 in.
#include "kernels/simd/vec.h"

namespace tandem::coded {
namespace {

using namespace simd;

/// Keys of which products with values in 8 bits fit into int32.
constexpr int kExactKeys = 16;

#if defined(TANDEM_ISA_scalar)
TANDEM_INLINE void store_words(int16_t* p, Vec x) {
  *p = static_cast<int16_t>(__builtin_rintf(x.v));
}
TANDEM_INLINE void load_f16_pairs(const uint8_t* p, Vec& first, Vec& second) {
  f16 pair[2];
  __builtin_memcpy(pair, p, sizeof pair);
  first = load(pair);
  second = load(pair + 1);
}
#elif defined(TANDEM_ISA_avx2)
TANDEM_INLINE __m128i pack_words(__m256i a) {
  return _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
}
TANDEM_INLINE void store_words(int16_t* p, Vec x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), pack_words(_mm256_cvtps_epi32(x.v)));
}
TANDEM_INLINE void load_f16_pairs(const uint8_t* p, Vec& first, Vec& second) {
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i low = _mm256_srai_epi32(_mm256_slli_epi32(pairs, 16), 16);
  first = {_mm256_cvtph_ps(pack_words(low))};
  second = {_mm256_cvtph_ps(pack_words(_mm256_srai_epi32(pairs, 16)))};
}
#else
TANDEM_INLINE void store_words(int16_t* p, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x.v)));
}
TANDEM_INLINE void load_f16_pairs(const uint8_t* p, Vec& first, Vec& second) {
  const __m512i pairs = _mm512_loadu_si512(p);
  first = {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs))};
  second = {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16)))};
}
#endif

}  // namespace
}  // namespace tandem::coded
