#pragma once
// Shared by the tests of conversions on CPU and GPU.
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/types.h"

namespace tandem::test {

inline uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }
/// The same bits; NaN of any bits is NaN.
inline bool same_number(float a, float b) {
  return bits(a) == bits(b) || (std::isnan(a) && std::isnan(b));
}

/// Every 16-bit pattern, and f32 around every rounding case.
inline std::vector<uint16_t> all_half_patterns() {
  std::vector<uint16_t> v(0x10000);
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<uint16_t>(i);
  return v;
}
inline std::vector<uint32_t> f32_patterns() {
  std::vector<uint32_t> v;
  for (uint32_t high = 0; high < 0x10000; ++high)
    for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      v.push_back(high << 16 | low);
  return v;
}

/// check(numbers, from, to) for all of these and every pair of types that a conversion knows.
template <class Check>
void for_every_conversion(const Check& check) {
  const auto half = all_half_patterns();
  for (const DType from : {DType::f16, DType::bf16})
    for (const DType to : {DType::f32, DType::bf16}) check(half, from, to);
  for (const DType to : {DType::f32, DType::bf16}) check(f32_patterns(), DType::f32, to);
}

}  // namespace tandem::test
