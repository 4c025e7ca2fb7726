#pragma once
// How code.h's numbers are rounded, on both devices.
#include "kernels/code/code.h"

namespace tandem {
namespace {

/// Steps of the even quantizer of a standard normal variable with the least mean square error (Max
/// 1960), by bits; and the share of the variance that is lost.
constexpr float code_step(int bits) { return bits == 1 ? 1.5958f : bits == 2 ? 0.9957f : 0.5860f; }
constexpr float code_lost(int bits) { return bits == 1 ? 0.3634f : bits == 2 ? 0.1188f : 0.0374f; }
/// The mean of |x| of such a variable.
constexpr float kMeanAbs = 0.79788456f;

/// The mean of x y for a standard normal x: e = |x| / sqrt(dims) / this for the average key.
constexpr float mean_product(int bits) { return (1 - code_lost(bits)) / code_step(bits); }

/// The step of x, in steps from the lowest one: floor(x / step), where `floored` is it, clamped.
constexpr int step_number(int floored, int bits) {
  const int half = 1 << (bits - 1), number = floored + half;
  return number < 0 ? 0 : number > 2 * half - 1 ? 2 * half - 1 : number;
}

constexpr uint8_t scale_code(float scale) {
  if (!(scale > 0)) return 0;
  const int64_t steps =
      (int64_t{__builtin_bit_cast(uint32_t, scale)} - kScaleBits + (1 << 17)) >> 18;
  return static_cast<uint8_t>(steps < 0 ? 0 : steps > 255 ? 255 : steps);
}

/// A query's coordinates become whole numbers of at most this size, and sums of kCodeDims
/// magnitudes, each rounded up by half at most, fit into eight bits.
constexpr float kMostQuery = 127, kMostQuerySum = 255.0f - kCodeDims / 2;

/// Later keys may lie this much further along the axis than those of the prompt.
constexpr float kAxisRoom = 1.5f;

/// The gains of a query whose coordinates were divided by `step`.
struct CodeGains {
  float sign, all, axis;
};
constexpr CodeGains code_gains(float step, float share, float weight, const CodeUnits& units,
                               int bits) {
  // |x| / sqrt(dims) is e mean_product, and a sign stands for |x_i| / kMeanAbs of its mean square.
  return {weight * step * units.scale * mean_product(bits) / kMeanAbs,
          weight * step * units.scale / 2, weight * share * units.axis};
}

}  // namespace
}  // namespace tandem
