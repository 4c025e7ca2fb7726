#pragma once
// Shared by the tests of conversions on CPU and GPU.
#include <bit>
#include <cstdint>
#include <vector>

namespace tandem::test {

inline uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }

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

}  // namespace tandem::test
