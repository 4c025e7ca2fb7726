#pragma once
#include <stdint.h>

namespace tandem {

/// Tables whose columns fill whole words of signs, and the bits of a code at most.
inline constexpr int kTableGroup = 32, kMaxHashBits = 16;

/// The code of the i-th table of rows of sign bits. The word after the one where it begins is read,
/// too.
__device__ inline uint16_t code_at(const uint32_t* words, int i, int code_bits) {
  const int bit = i * code_bits, at = bit / 32;
  const uint64_t both = uint64_t{words[at + 1]} << 32 | words[at];
  return static_cast<uint16_t>(both >> bit % 32 & ((1u << code_bits) - 1));
}

}  // namespace tandem
