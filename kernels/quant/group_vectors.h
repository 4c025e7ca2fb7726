#pragma once
// Vectors of a group's weights and codes, for quantize.inl and dequantize.inl.
#include <string.h>

#include "base/two_level.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

/// Codes that are packed or unpacked at once.
constexpr int kCodesAtOnce = 64;

/// Calls f(element, lanes) for all vectors of n elements, the last one in part.
template <class F>
TANDEM_INLINE void each_vector(int n, F&& f) {
  int i = 0;
  for (; i + kW <= n; i += kW) f(i, kW);
  if (i < n) f(i, n - i);
}

/// The first n numbers, the rest 0.
template <class T>
TANDEM_INLINE Vec part_of(const T* x, int n) {
  return n >= kW ? load(x) : load_n(x, n);
}

template <class T>
TANDEM_INLINE void put(T* to, Vec x, int n) {
  if (n >= kW)
    store(to, x);
  else
    store_n(to, x, n);
}

/// Packs 2 n_bytes codes of four bits: the first of two in the low half.
TANDEM_INLINE void pack_pairs(uint8_t* to, const int8_t* codes, int n_bytes) {
  for (int i = 0; i < n_bytes; ++i) {
    uint16_t pair;
    memcpy(&pair, codes + 2 * i, sizeof(pair));
    to[i] = static_cast<uint8_t>(pair | pair >> 4);
  }
}

TANDEM_INLINE void unpack_pairs(int8_t* codes, const uint8_t* from, int n_bytes) {
  for (int i = 0; i < n_bytes; ++i) {
    const auto pair = static_cast<uint16_t>((from[i] & 15) | (from[i] >> 4) << 8);
    memcpy(codes + 2 * i, &pair, sizeof(pair));
  }
}

// E4M3 in f32: the exponent has another bias, and subnormal numbers are whole multiples of 2^-9.

TANDEM_INLINE float fp8_number(uint8_t code) {
  const uint32_t bits = (code & 0x7fu) << 20 | (code & 0x80u) << 24;
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x * 0x1p120f;
}

/// x   finite
TANDEM_INLINE uint8_t fp8_code(float x) {
  constexpr uint32_t kLeastNormal = 0x3c800000, kBias = 120u << 3, kMost = 0x7e;
  constexpr float kUnits = 0x1p14f;  // numbers of its size are multiples of 2^-9
  uint32_t bits, sum, units;
  memcpy(&bits, &x, sizeof(bits));
  const uint32_t magnitude = bits & 0x7fffffffu;
  float moved;
  memcpy(&moved, &magnitude, sizeof(moved));
  moved += kUnits;
  memcpy(&sum, &moved, sizeof(sum));
  memcpy(&units, &kUnits, sizeof(units));
  const uint32_t normal = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - kBias;
  const uint32_t code = magnitude < kLeastNormal ? sum - units : normal;
  return static_cast<uint8_t>((code < kMost ? code : kMost) | (bits >> 24 & 0x80u));
}

}  // namespace
}  // namespace tandem
