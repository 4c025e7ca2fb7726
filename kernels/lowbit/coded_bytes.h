#pragma once
// Vectors of bytes and 16-bit numbers for coded_tiles.h: kGroup lanes of 16 bytes.
#include "kernels/simd/vec.h"

namespace tandem::coded {
namespace {

using namespace simd;

TANDEM_INLINE __m128i load_lane(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

#ifdef TANDEM_ISA_avx2
using Bytes = __m256i;
TANDEM_INLINE Bytes load_bytes(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
TANDEM_INLINE void store_bytes(void* p, Bytes a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), a);
}
TANDEM_INLINE Bytes no_bytes() { return _mm256_setzero_si256(); }
TANDEM_INLINE Bytes each_byte(int x) { return _mm256_set1_epi8(static_cast<char>(x)); }
TANDEM_INLINE Bytes each_lane(__m128i a) { return _mm256_broadcastsi128_si256(a); }
/// 16 bytes each of rows `stride` apart.
TANDEM_INLINE Bytes load_lanes(const uint8_t* p, int stride) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load_lane(p)), load_lane(p + stride), 1);
}
/// Byte kGroup i + k: byte i of lane k.
TANDEM_INLINE Bytes interleave_lanes(Bytes a) {
  const __m128i order = _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
  return _mm256_shuffle_epi8(_mm256_permute4x64_epi64(a, 0xd8), each_lane(order));
}
template <int kBits>
TANDEM_INLINE Bytes left(Bytes a) {
  return _mm256_slli_epi16(a, kBits);
}
template <int kBits>
TANDEM_INLINE Bytes right(Bytes a) {
  return _mm256_srli_epi16(a, kBits);
}
TANDEM_INLINE Bytes both(Bytes a, Bytes b) { return _mm256_and_si256(a, b); }
/// Bits of a where `mask` is set, else of b.
TANDEM_INLINE Bytes choose(Bytes mask, Bytes a, Bytes b) {
  return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
}
TANDEM_INLINE Bytes look_up(Bytes table, Bytes at) { return _mm256_shuffle_epi8(table, at); }
TANDEM_INLINE Bytes low_pairs(Bytes a, Bytes b) { return _mm256_unpacklo_epi8(a, b); }
TANDEM_INLINE Bytes high_pairs(Bytes a, Bytes b) { return _mm256_unpackhi_epi8(a, b); }
TANDEM_INLINE Bytes dot_add(Bytes sum, Bytes a, Bytes b) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}
/// The words of kGroup keys, again and again.
TANDEM_INLINE Bytes each_group(const int16_t* p) {
  int32_t x;
  __builtin_memcpy(&x, p, sizeof x);
  return _mm256_set1_epi32(x);
}
TANDEM_INLINE Bytes add_numbers(Bytes a, Bytes b) { return _mm256_add_epi32(a, b); }
/// from + (wide * part >> 16), of 16 unsigned bits, negative where `minus` is -1.
TANDEM_INLINE Bytes signed_sum(Bytes from, Bytes wide, Bytes part, Bytes minus) {
  const Bytes y = _mm256_add_epi16(from, _mm256_mulhi_epu16(wide, part));
  return _mm256_sub_epi16(_mm256_xor_si256(y, minus), minus);
}
TANDEM_INLINE Vec to_floats(Bytes a) { return {_mm256_cvtepi32_ps(a)}; }
/// Lane i of the result: the sum of x[i / kGroup]'s four numbers in its 16 bytes i % kGroup.
TANDEM_INLINE Bytes sums_of_lanes(Bytes (&x)[4]) {
  const auto pair = [](Bytes a, Bytes b) {
    return _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
  };
  const Bytes a = pair(x[0], x[1]), b = pair(x[2], x[3]);
  const Bytes sums = _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
  return _mm256_permutevar8x32_epi32(sums, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

#else
using Bytes = __m512i;
TANDEM_INLINE Bytes load_bytes(const void* p) { return _mm512_loadu_si512(p); }
TANDEM_INLINE void store_bytes(void* p, Bytes a) { _mm512_storeu_si512(p, a); }
TANDEM_INLINE Bytes no_bytes() { return _mm512_setzero_si512(); }
TANDEM_INLINE Bytes each_byte(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }
TANDEM_INLINE Bytes each_lane(__m128i a) { return _mm512_broadcast_i32x4(a); }
TANDEM_INLINE Bytes load_lanes(const uint8_t* p, int stride) {
  if (stride == 16) return load_bytes(p);
  const auto two = [](__m128i a, __m128i b) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
  };
  const __m256i low = two(load_lane(p), load_lane(p + stride));
  const __m256i high = two(load_lane(p + 2 * stride), load_lane(p + 3 * stride));
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
TANDEM_INLINE Bytes interleave_lanes(Bytes a) {
  const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i words = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_shuffle_epi8(_mm512_permutexvar_epi32(words, a), each_lane(order));
}
template <int kBits>
TANDEM_INLINE Bytes left(Bytes a) {
  return _mm512_slli_epi16(a, kBits);
}
template <int kBits>
TANDEM_INLINE Bytes right(Bytes a) {
  return _mm512_srli_epi16(a, kBits);
}
TANDEM_INLINE Bytes both(Bytes a, Bytes b) { return _mm512_and_si512(a, b); }
TANDEM_INLINE Bytes choose(Bytes mask, Bytes a, Bytes b) {
  return _mm512_ternarylogic_epi32(a, b, mask, 0xe4);
}
TANDEM_INLINE Bytes look_up(Bytes table, Bytes at) { return _mm512_shuffle_epi8(table, at); }
TANDEM_INLINE Bytes low_pairs(Bytes a, Bytes b) { return _mm512_unpacklo_epi8(a, b); }
TANDEM_INLINE Bytes high_pairs(Bytes a, Bytes b) { return _mm512_unpackhi_epi8(a, b); }
TANDEM_INLINE Bytes dot_add(Bytes sum, Bytes a, Bytes b) {
#ifdef TANDEM_ISA_avx512
  return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
#else
  return _mm512_dpwssd_epi32(sum, a, b);
#endif
}
TANDEM_INLINE Bytes each_group(const int16_t* p) {
  int64_t x;
  __builtin_memcpy(&x, p, sizeof x);
  return _mm512_set1_epi64(x);
}
TANDEM_INLINE Bytes add_numbers(Bytes a, Bytes b) { return _mm512_add_epi32(a, b); }
TANDEM_INLINE Vec to_floats(Bytes a) { return {_mm512_cvtepi32_ps(a)}; }
TANDEM_INLINE Bytes sums_of_lanes(Bytes (&x)[4]) {
  const auto pair = [](Bytes a, Bytes b) {
    return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  };
  const Bytes a = pair(x[0], x[1]), b = pair(x[2], x[3]);
  const Bytes sums = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  return _mm512_permutexvar_epi32(
      _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), sums);
}
#endif

constexpr int kBytes = sizeof(Bytes);
constexpr int kGroup = kBytes / 16;  // rows that are decoded at once
static_assert(kW == 4 * kGroup);

}  // namespace
}  // namespace tandem::coded
