#pragma once
// The random numbers of draw_children, for its bodies and CUDA kernel. Compiled without
// contraction: each operation rounds once, so every ISA and GPU gives the same bits.
#include <stdint.h>

#include "base/log2.h"
#include "kernels/tree/round_numbers.h"

namespace tandem {
namespace {

constexpr auto kPurposeChildren = static_cast<uint32_t>(DrawPurpose::children);

/// A node whose children race. Token x has word x % 64 / 16 of the block x / 64 * 16 + x % 16, and
/// as later bits the same word of the block with kMoreBits set. The last word of a counter has the
/// purpose in its high byte, where round_numbers.h has a node: no counter of one is ever one of
/// the other.
struct RaceNames {
  RoundNames round;
  uint32_t node;  // below 2^16
};
constexpr uint32_t last_word(const RaceNames& r) {
  return kPurposeChildren << 24 | r.round.stage << 16 | r.node;
}
constexpr uint32_t kMoreBits = 1u << 31;

constexpr PhiloxBlock race_block(const RaceNames& r, uint32_t block) {
  return philox_block({{block, r.round.sequence, r.round.position, last_word(r)}}, r.round.seed);
}

/// Standard exponential of 32 leading and 20 later random bits: -log(1 - v) with v the number in
/// (0, 1) that these are the binary digits of. It is never below v; small v keep all their digits.
constexpr double exponential_of(uint32_t leading, uint32_t later) {
  const double v =
      (static_cast<double>(leading) * 0x1p20 + static_cast<double>(later >> 12) + 0.5) * 0x1p-52;
  const double u = 1.0 - v;
  // u = m 2^e with m in [sqrt(1/2), sqrt(2)); then log m = 2 atanh((m - 1) / (m + 1)).
  const auto bits = __builtin_bit_cast(uint64_t, u);
  const uint64_t shifted = bits - 0x3fe6a09e667f3bcdu;  // bits of sqrt(1/2)
  const int64_t exponent = static_cast<int64_t>(shifted) >> 52;
  const double m = __builtin_bit_cast(double, bits - (static_cast<uint64_t>(exponent) << 52));
  const double s = exponent == 0 ? v / (2.0 - v) : (1.0 - m) / (1.0 + m);
  const double s2 = s * s;
  double p = 1.0 / 21;  // atanh's series: |s| <= 0.172, so the first term left out is below 1e-17
  for (int k = 19; k > 0; k -= 2) p = p * s2 + 1.0 / k;
  return 2.0 * s * p - static_cast<double>(exponent) * kLn2Double;
}

/// That of one token.
constexpr double exponential_of_token(const RaceNames& names, int32_t id) {
  const auto x = static_cast<uint32_t>(id);
  const uint32_t block = x / 64 * 16 + x % 16, word = x % 64 / 16;
  return exponential_of(race_block(names, block).w[word],
                        race_block(names, block | kMoreBits).w[word]);
}

}  // namespace
}  // namespace tandem
