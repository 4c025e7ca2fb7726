#include "base/convert.h"

#include <algorithm>

namespace tandem {

float to_float(f16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1fu;
  const uint32_t mantissa = x.bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float value = std::ldexp(static_cast<float>(mantissa), -24);
    return sign ? -value : value;
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

f16 to_f16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u)
    return {static_cast<uint16_t>(sign | 0x7c00u)};  // rounds past 65504
  if (magnitude < 0x38800000u) {
    // Subnormal: units of 2^-24; nearbyint rounds ties to even in the default mode.
    const float scaled = std::nearbyint(std::ldexp(std::bit_cast<float>(magnitude), 24));
    return {static_cast<uint16_t>(sign | static_cast<uint16_t>(scaled))};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

namespace {

constexpr int kFp8Mantissa = 3, kFp8Bias = 7, kFp8Most = 0x7e;  // 448

}  // namespace

float fp8_number(uint8_t code) {
  const int magnitude = code & 0x7f, exponent = magnitude >> kFp8Mantissa, mantissa = code & 7;
  if (magnitude > kFp8Most) return NAN;
  const float value =
      exponent == 0
          ? std::ldexp(static_cast<float>(mantissa), 1 - kFp8Bias - kFp8Mantissa)
          : std::ldexp(static_cast<float>(8 + mantissa), exponent - kFp8Bias - kFp8Mantissa);
  return code > 0x7f ? -value : value;
}

uint8_t fp8_code(float x) {
  const float magnitude = std::abs(x);
  const int sign = std::signbit(x) ? 0x80 : 0;
  if (magnitude >= fp8_number(kFp8Most)) return static_cast<uint8_t>(sign | kFp8Most);
  const int exponent =
      magnitude == 0 ? 1 - kFp8Bias : std::max(1 - kFp8Bias, std::ilogb(magnitude));
  // Units of the last place; 8 and more of them carry into the exponent.
  const auto units =
      static_cast<int>(std::nearbyint(std::ldexp(magnitude, kFp8Mantissa - exponent)));
  return static_cast<uint8_t>(sign | (((exponent + kFp8Bias - 1) << kFp8Mantissa) + units));
}

}  // namespace tandem
