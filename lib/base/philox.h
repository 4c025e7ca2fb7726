#pragma once
// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel Random Numbers: As Easy as
// 1, 2, 3" (SC11): a pure function of key and counter, so any draw can be recomputed anywhere. No
// STL, and unnamed: included by sources compiled with per-ISA flags.
#include <stdint.h>

namespace tandem {

/// What a draw is for; part of the counter, so that no two uses ever share a number.
enum class DrawPurpose : uint32_t {
  sample = 0,
  accept = 1,
  residual = 2,
  data = 3,
  weights = 4,
  keys = 5,      // that sparse attention samples
  children = 6,  // of a node of a tree of draft tokens
  dropout = 7,
  rounding = 8,  // of trained weights
};

namespace {

struct PhiloxBlock {
  uint32_t w[4];
};

/// The block of a counter under a key of 64 bits.
constexpr PhiloxBlock philox_block(PhiloxBlock counter, uint64_t seed) {
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter.w[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter.w[2];
    counter = {{static_cast<uint32_t>(b >> 32) ^ counter.w[1] ^ key[0], static_cast<uint32_t>(b),
                static_cast<uint32_t>(a >> 32) ^ counter.w[3] ^ key[1], static_cast<uint32_t>(a)}};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// Uniform in [0, 1) with 53 bits from two words.
constexpr double uniform_of(uint32_t hi, uint32_t lo) {
  return static_cast<double>(((uint64_t{hi} << 32) | lo) >> 11) * 0x1.0p-53;
}

}  // namespace
}  // namespace tandem
