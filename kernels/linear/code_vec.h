#pragma once
// Vectors of integers for quantized_linear: a lane for each lane of simd::Vec.
//
//   Ints, load_ints(p)              kW integers of 32 bits.
//
//   bits_of_ints(a, shift, mask)    (a >> shift) & mask on unsigned lanes; a shift below 0 is to
//                                   the left.
//
//   either(a, b)                    a | b.
//
//   to_float(a)                     A Vec.
//
//   fp8_numbers(a, byte)            The numbers of the fp8 codes in one byte of each lane.
//
//   Dots<code>                      Each lane sums products of four codes and four integers of x,
//                                   from `start` on. Stored codes are kOffset too large.
//
//   HighDots                        These sum i4 codes in high halves, and are kTimes too large.
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using simd::kW;
using simd::Vec;

constexpr int kLowHalves = 0x0f0f0f0f;

/// Places of a sign, exponent and mantissa of E4M3 in f32, and the ratio of their values.
constexpr int kFp8Bits = static_cast<int>(0x87f00000u);
constexpr float kFp8Scale = 0x1p120f;

TANDEM_INLINE int32_t four_inputs(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, sizeof four);
  return four;
}

#if defined(TANDEM_ISA_scalar)

struct Ints {
  int32_t v;
};
TANDEM_INLINE Ints load_ints(const void* p) {
  Ints a;
  __builtin_memcpy(&a.v, p, sizeof a.v);
  return a;
}
TANDEM_INLINE Ints bits_of_ints(Ints a, int shift, int mask) {
  const auto bits = static_cast<uint32_t>(a.v);
  return {static_cast<int32_t>(shift < 0 ? bits << -shift : bits >> shift) & mask};
}
TANDEM_INLINE Ints either(Ints a, Ints b) { return {a.v | b.v}; }
TANDEM_INLINE Vec to_float(Ints a) { return {static_cast<float>(a.v)}; }
TANDEM_INLINE Vec fp8_numbers(Ints a, int byte) {
  const uint32_t code = static_cast<uint32_t>(a.v) >> (8 * byte);
  const uint32_t bits = (code & 0x7fu) << 20 | (code & 0x80u) << 24;
  Vec x;
  __builtin_memcpy(&x.v, &bits, sizeof bits);
  return x * simd::set1(kFp8Scale);
}

template <Code code>
struct Dots {
  static constexpr int kTimes = 1;
  static constexpr int kOffset = code == Code::i8 ? 128 : 0;
  int32_t sum = 0;
  TANDEM_INLINE void begin(int32_t start) { sum = start; }
  TANDEM_INLINE void add(Ints w, const int8_t* x) {
    for (int j = 0; j < 4; ++j) sum += bits_of_ints(w, 8 * j, 0xff).v * x[j];
  }
  TANDEM_INLINE Vec end() const { return {static_cast<float>(sum)}; }
};

#elif defined(TANDEM_ISA_avx2)

struct Ints {
  __m256i v;
};
TANDEM_INLINE Ints load_ints(const void* p) {
  return {_mm256_loadu_si256(static_cast<const __m256i*>(p))};
}
TANDEM_INLINE Ints bits_of_ints(Ints a, int shift, int mask) {
  const __m256i bits = shift < 0 ? _mm256_slli_epi32(a.v, -shift) : _mm256_srli_epi32(a.v, shift);
  return {_mm256_and_si256(bits, _mm256_set1_epi32(mask))};
}
TANDEM_INLINE Ints either(Ints a, Ints b) { return {_mm256_or_si256(a.v, b.v)}; }
TANDEM_INLINE Vec to_float(Ints a) { return {_mm256_cvtepi32_ps(a.v)}; }
TANDEM_INLINE Vec fp8_numbers(Ints a, int byte) {
  const __m256i moved = _mm256_srai_epi32(_mm256_slli_epi32(a.v, 24 - 8 * byte), 4);
  const __m256i bits = _mm256_and_si256(moved, _mm256_set1_epi32(kFp8Bits));
  return Vec{_mm256_castsi256_ps(bits)} * simd::set1(kFp8Scale);
}

/// Sums of i4 stay within 16 bits: 8 times 2 * 15 * 127. Two products of i6 do, 2 * 63 * 127.
template <Code code>
struct Dots {
  static constexpr int kTimes = 1;
  static constexpr int kOffset = 0;
  __m256i sum = _mm256_setzero_si256();
  int32_t start = 0;
  TANDEM_INLINE void begin(int32_t first) { start = first; }
  TANDEM_INLINE void add(Ints w, const int8_t* x) {
    const __m256i four = _mm256_set1_epi32(four_inputs(x));
    if constexpr (code == Code::i4) {
      sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w.v, four));
    } else if constexpr (code != Code::i8) {
      const __m256i pairs = _mm256_maddubs_epi16(w.v, four);
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    } else {
      const __m256i q = _mm256_xor_si256(w.v, _mm256_set1_epi8(-128));
      const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(four, q));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
  }
  TANDEM_INLINE Vec end() const {
    const __m256i all = code == Code::i4 ? _mm256_madd_epi16(sum, _mm256_set1_epi16(1)) : sum;
    return {_mm256_cvtepi32_ps(_mm256_add_epi32(all, _mm256_set1_epi32(start)))};
  }
};

#else

struct Ints {
  __m512i v;
};
TANDEM_INLINE Ints load_ints(const void* p) { return {_mm512_loadu_si512(p)}; }
TANDEM_INLINE Ints bits_of_ints(Ints a, int shift, int mask) {
  const __m512i bits = shift < 0 ? _mm512_slli_epi32(a.v, static_cast<unsigned>(-shift))
                                 : _mm512_srli_epi32(a.v, static_cast<unsigned>(shift));
  return {_mm512_and_si512(bits, _mm512_set1_epi32(mask))};
}
TANDEM_INLINE Ints either(Ints a, Ints b) { return {_mm512_or_si512(a.v, b.v)}; }
TANDEM_INLINE Vec to_float(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
TANDEM_INLINE Vec fp8_numbers(Ints a, int byte) {
  const auto left = static_cast<unsigned>(24 - 8 * byte);
  const __m512i moved = _mm512_srai_epi32(_mm512_slli_epi32(a.v, left), 4);
  const __m512i bits = _mm512_and_si512(moved, _mm512_set1_epi32(kFp8Bits));
  return Vec{_mm512_castsi512_ps(bits)} * simd::set1(kFp8Scale);
}

#if defined(TANDEM_ISA_avx512)
/// Without VNNI.
template <Code code>
struct Dots {
  static constexpr int kTimes = 1;
  static constexpr int kOffset = 0;
  __m512i sum = _mm512_setzero_si512();
  int32_t start = 0;
  TANDEM_INLINE void begin(int32_t first) { start = first; }
  TANDEM_INLINE void add(Ints w, const int8_t* x) {
    const __m512i four = _mm512_set1_epi32(four_inputs(x));
    if constexpr (code == Code::i4) {
      sum = _mm512_add_epi16(sum, _mm512_maddubs_epi16(w.v, four));
    } else if constexpr (code != Code::i8) {
      const __m512i pairs = _mm512_maddubs_epi16(w.v, four);
      sum = _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
    } else {
      const __m512i q = _mm512_xor_si512(w.v, _mm512_set1_epi8(-128));
      const __m512i turned =
          _mm512_mask_sub_epi8(four, _mm512_movepi8_mask(q), _mm512_setzero_si512(), four);
      const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(q), turned);
      sum = _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
    }
  }
  TANDEM_INLINE Vec end() const {
    const __m512i all = code == Code::i4 ? _mm512_madd_epi16(sum, _mm512_set1_epi16(1)) : sum;
    return {_mm512_cvtepi32_ps(_mm512_add_epi32(all, _mm512_set1_epi32(start)))};
  }
};
#else
template <Code code, int times = 1>
struct Dots {
  static constexpr int kTimes = times;
  static constexpr int kOffset = code == Code::i8 ? 128 : 0;
  __m512i sum = _mm512_setzero_si512();
  TANDEM_INLINE void begin(int32_t start) { sum = _mm512_set1_epi32(start * times); }
  /// Broadcasts x as the product reads it; GCC 12 would use another instruction.
  TANDEM_INLINE void add(Ints w, const int8_t* x) {
    asm("vpdpbusd %2%{1to16%}, %1, %0"
        : "+v"(sum)
        : "v"(w.v), "m"(*reinterpret_cast<const int8_t(*)[4]>(x)));
  }
  TANDEM_INLINE Vec end() const { return {_mm512_cvtepi32_ps(sum)}; }
};
/// Codes that stay in high halves, so that sums are 16 times as large.
struct HighDots : Dots<Code::i4, 16> {
  static TANDEM_INLINE Ints half(Ints both) { return bits_of_ints(both, 0, ~kLowHalves); }
};
#endif

#endif

#if defined(TANDEM_ISA_scalar) || defined(TANDEM_ISA_avx2) || defined(TANDEM_ISA_avx512)
/// Sixteen times the codes would not fit sums of 16 bits.
struct HighDots : Dots<Code::i4> {
  static TANDEM_INLINE Ints half(Ints both) { return bits_of_ints(both, 4, kLowHalves); }
};
#endif

}  // namespace
}  // namespace tandem
