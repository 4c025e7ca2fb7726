#pragma once
// Vec of one lane for CPUs without AVX2. Part of vec.h; see there.
#include <math.h>
#include <string.h>

namespace tandem::simd {
namespace {

struct Vec {
  static constexpr int kLanes = 1;
  float v;
};
struct Mask {
  bool v;
};

TANDEM_INLINE Vec set1(float x) { return {x}; }
TANDEM_INLINE Vec zero() { return {0.0f}; }
TANDEM_INLINE Vec load(const float* p) { return {*p}; }
TANDEM_INLINE Vec load(const bf16* p) {
  return {__builtin_bit_cast(float, static_cast<uint32_t>(p->bits) << 16)};
}
TANDEM_INLINE void load_even_odd(const bf16* p, Vec& even, Vec& odd) {
  even = load(p);
  odd = load(p + 1);
}
TANDEM_INLINE void store(float* p, Vec a) { *p = a.v; }
TANDEM_INLINE void store(bf16* p, Vec a) {
  const uint32_t u = __builtin_bit_cast(uint32_t, a.v);
  const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
  p->bits = static_cast<uint16_t>((nan ? (u | 0x00400000u) : u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
TANDEM_INLINE Vec load(const f16* p) {
  const uint32_t sign = static_cast<uint32_t>(p->bits & 0x8000u) << 16, rest = p->bits & 0x7fffu;
  if (rest >= 0x7c00u) return {__builtin_bit_cast(float, sign | ((rest + 0x38000u) << 13))};
  // The exponent's bias is mended by a product, which takes subnormal numbers along.
  return {__builtin_bit_cast(float, sign | (rest << 13)) * 0x1p112f};
}
TANDEM_INLINE void store(f16* p, Vec a) {
  const uint32_t u = __builtin_bit_cast(uint32_t, a.v);
  const uint32_t sign = (u >> 16) & 0x8000u, rest = u & 0x7fffffffu;
  uint32_t bits = 0;
  if (rest > 0x7f800000u)
    bits = 0x7e00u;
  else if (rest >= 0x477ff000u)  // rounds past 65504
    bits = 0x7c00u;
  else if (rest < 0x38800000u)  // subnormal: adding rounds to units of 2^-24
    bits = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, rest) + 0.5f) - 0x3f000000u;
  else
    bits = (rest + 0xfffu + ((rest >> 13) & 1u) - 0x38000000u) >> 13;
  p->bits = static_cast<uint16_t>(sign | bits);
}
TANDEM_INLINE Vec load(const int8_t* p) { return {static_cast<float>(*p)}; }
TANDEM_INLINE void store(int8_t* p, Vec a) { *p = static_cast<int8_t>(::nearbyintf(a.v)); }
template <class T>
TANDEM_INLINE Vec load_n(const T* p, int n) {
  return n > 0 ? load(p) : zero();
}
template <class T>
TANDEM_INLINE void store_n(T* p, Vec a, int n) {
  if (n > 0) store(p, a);
}

TANDEM_INLINE Vec operator+(Vec a, Vec b) { return {a.v + b.v}; }
TANDEM_INLINE Vec operator-(Vec a, Vec b) { return {a.v - b.v}; }
TANDEM_INLINE Vec operator*(Vec a, Vec b) { return {a.v * b.v}; }
TANDEM_INLINE Vec operator/(Vec a, Vec b) { return {a.v / b.v}; }
TANDEM_INLINE Vec fma(Vec a, Vec b, Vec c) { return {a.v * b.v + c.v}; }
TANDEM_INLINE Vec fnma(Vec a, Vec b, Vec c) { return {c.v - a.v * b.v}; }
TANDEM_INLINE Vec max(Vec a, Vec b) { return {a.v > b.v ? a.v : b.v}; }
TANDEM_INLINE Vec min(Vec a, Vec b) { return {a.v < b.v ? a.v : b.v}; }
TANDEM_INLINE Vec sqrt(Vec a) { return {__builtin_sqrtf(a.v)}; }
TANDEM_INLINE Vec abs(Vec a) { return {__builtin_fabsf(a.v)}; }
TANDEM_INLINE Vec round(Vec a) { return {::nearbyintf(a.v)}; }

TANDEM_INLINE Mask lt(Vec a, Vec b) { return {a.v < b.v}; }
TANDEM_INLINE Mask first_lanes(int n) { return {n > 0}; }
TANDEM_INLINE Mask mask_of_bits(uint32_t bits) { return {(bits & 1u) != 0}; }
TANDEM_INLINE uint32_t bits_of(Mask m) { return m.v ? 1u : 0u; }
TANDEM_INLINE Mask operator&(Mask a, Mask b) { return {a.v && b.v}; }
TANDEM_INLINE Mask operator|(Mask a, Mask b) { return {a.v || b.v}; }
TANDEM_INLINE Vec select(Mask m, Vec a, Vec b) { return m.v ? a : b; }

TANDEM_INLINE float reduce_add(Vec a) { return a.v; }
TANDEM_INLINE float reduce_max(Vec a) { return a.v; }

TANDEM_INLINE Vec max_of_each(Vec (&r)[1]) { return r[0]; }

/// p * 2^n for integral |n| <= 160, in two steps so that subnormal results and inf come out.
TANDEM_INLINE Vec scale2(Vec p, Vec n) {
  if (n.v != n.v) return n;
  const int whole = static_cast<int>(n.v), half = whole >> 1;
  const auto power = [](int e) {
    return __builtin_bit_cast(float, static_cast<uint32_t>(e + 127) << 23);
  };
  return {p.v * power(half) * power(whole - half)};
}

/// The number whose exponent field, and nothing else, is the low 8 bits of a's mantissa.
TANDEM_INLINE Vec low_bits_as_exponent(Vec a) {
  return {__builtin_bit_cast(float, __builtin_bit_cast(uint32_t, a.v) << 23)};
}

}  // namespace
}  // namespace tandem::simd
