#pragma once
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace tandem {

constexpr float to_float(float x) { return x; }

constexpr float to_float(bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

/// Round to nearest, ties to even; NaN stays NaN (quiet), overflow goes to infinity.
constexpr bf16 to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x0040u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

float to_float(f16 x);
f16 to_f16(float x);

/// The number of an E4M3 code; NaN of 0x7f and 0xff.
float fp8_number(uint8_t code);
/// The E4M3 code of a number that is not NaN: round to nearest, ties to even, at most 448.
uint8_t fp8_code(float x);

/// Bytes of one element.
constexpr size_t dtype_bytes(DType t) {
  switch (t) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::i64:
      return 8;
    case DType::u8:
      return 1;
  }
  return 0;
}

constexpr const char* dtype_name(DType t) {
  switch (t) {
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::u8:
      return "u8";
  }
  return "?";
}

}  // namespace tandem
