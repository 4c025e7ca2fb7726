#pragma once
// The scale of a row in eight bits, on both devices. Plain arithmetic in an unnamed namespace: for
// sources compiled with per-ISA flags too.
#include <stdint.h>

namespace tandem {
namespace {

/// Below it the inverse of a scale would leave f32; no key or value of a model is near.
inline constexpr float kLeastInRow = 0x1p-100f;

/// Of a row whose largest magnitude this is, finite. Cut to 16 significant bits: whole numbers up
/// to 127 times it are then exact in f32, and a row that is made wide and narrow again gets the
/// same scale. Cut, not rounded: 127 scales are never more than the largest number, so never
/// infinite.
constexpr float eight_bit_scale(float largest) {
  if (largest < kLeastInRow) return 0;
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, largest / 127.0f) & 0xffffff00u);
}
/// What elements are multiplied with, then rounded to the nearest whole number.
constexpr float eight_bit_factor(float scale) { return scale > 0 ? 1.0f / scale : 0.0f; }

}  // namespace
}  // namespace tandem
