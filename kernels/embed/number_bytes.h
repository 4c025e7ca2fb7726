#pragma once
// Conversions for convert.inl and embed.inl, on loops that the compiler vectorises for each ISA.
// Integer arithmetic and exact float operations only, so every ISA gives the same bits.
#include <string.h>

#include "base/types.h"

namespace tandem {
namespace {

inline float float_of_bits(uint32_t u) { return __builtin_bit_cast(float, u); }

/// Reads element i of unaligned memory; the memcpy is one load.
template <class T>
inline T read_element(const void* in, int64_t i) {
  T x;
  memcpy(&x, static_cast<const char*>(in) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return x;
}

inline float widen(float x) { return x; }
inline float widen(bf16 x) { return float_of_bits(static_cast<uint32_t>(x.bits) << 16); }
inline float widen(f16 x) {
  constexpr uint32_t kRebias = 112u << 23;        // f32 bias 127 - f16 bias 15
  constexpr uint32_t kTwoToMinus14 = 113u << 23;  // the smallest normal f16
  const uint32_t sign = (x.bits & 0x8000u) << 16, magnitude = (x.bits & 0x7fffu) << 13;
  const uint32_t normal = magnitude + kRebias + (magnitude >= (0x7c00u << 13) ? kRebias : 0u);
  // 2^-14 + m 2^-24 minus 2^-14: exact, and never meets a subnormal f32, which would be slow.
  const float small = float_of_bits(magnitude | kTwoToMinus14) - float_of_bits(kTwoToMinus14);
  const uint32_t u = magnitude < (0x0400u << 13) ? __builtin_bit_cast(uint32_t, small) : normal;
  return float_of_bits(sign | u);
}

inline void narrow(float* out, float x) { *out = x; }
inline void narrow(bf16* out, float x) {
  const uint32_t u = __builtin_bit_cast(uint32_t, x);
  const uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1u);
  out->bits =
      static_cast<uint16_t>(((u & 0x7fffffffu) > 0x7f800000u ? u | 0x00400000u : rounded) >> 16);
}

template <class To, class From>
inline void convert_elements(void* out, const void* in, int64_t begin, int64_t end) {
  To* __restrict to = static_cast<To*>(out);
  for (int64_t i = begin; i < end; ++i) narrow(to + i, widen(read_element<From>(in, i)));
}

}  // namespace
}  // namespace tandem
