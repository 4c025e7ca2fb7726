#pragma once
// The numbers that a tail's sample goes by, on both devices: plain arithmetic and whole sums, for
// sources that contract no operations, so that equal scores give equal samples.
#include <stdint.h>

#include "base/log2.h"

namespace tandem {
namespace {

/// -log(x) for normal x: exponent plus a polynomial for log2 of the mantissa, exact at its ends.
constexpr float minus_log(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const float exponent = static_cast<float>(static_cast<int32_t>(bits >> 23) - 127);
  const float t = __builtin_bit_cast(float, (bits & 0x007fffffu) | 0x3f800000u) - 1.0f;
  const float q =
      0.442527273f +
      t * (-0.275386207f + t * (0.181154204f + t * (-0.0948147534f + t * 0.0252855060f)));
  return -kLn2 * (exponent + t + t * (1.0f - t) * q);
}

/// A standard exponential variate for an id: -log of a uniform number, at most 15.95.
constexpr float exponential_of(uint32_t key, int id) {
  // The finaliser of MurmurHash3, public domain constants.
  uint32_t x = static_cast<uint32_t>(id) * 0x9e3779b1u + key;
  x ^= x >> 16;
  x *= 0x85ebca6bu;
  x ^= x >> 13;
  x *= 0xc2b2ae35u;
  x ^= x >> 16;
  // 23 bits as a number in [1, 2); two minus it is in (0, 1] without rounding.
  return minus_log(2.0f - __builtin_bit_cast(float, (x >> 9) | 0x3f800000u));
}

/// Keys that a sample takes at most where `wanted` are expected.
constexpr int most_sampled(double wanted) { return 64 + static_cast<int>(2 * wanted); }

/// How much the scale rises, as a logarithm, while more than these are taken.
inline constexpr float kScaleRise = 0.125f;

/// Scores that the scale is found from at most: all, or some at even distances.
inline constexpr int kScaleScores = 1024;
constexpr int scale_step(int n) { return (n + kScaleScores - 1) / kScaleScores; }
constexpr int scale_scores(int n) { return (n + scale_step(n) - 1) / scale_step(n); }

/// exp(x) for x <= 0 in units of which sums of kScaleScores stay below 2^32.
inline constexpr int kWeightBits = 21;
constexpr uint32_t weight_units(float x) {
  const float y = x * kLog2E < -40.0f ? -40.0f : x * kLog2E;  // -inf, too
  const int whole = static_cast<int>(y);
  const float t = y - static_cast<float>(whole);  // above -1; 2^t is good to 1e-5, exact at 0
  const float mantissa =
      1.0f + t * (0.693115773f + t * (0.239625984f + t * (0.0533590430f + t * 0.00684883183f)));
  return static_cast<uint32_t>(static_cast<int32_t>(
      mantissa *
      __builtin_bit_cast(float, static_cast<uint32_t>(127 + kWeightBits + whole) << 23)));
}

/// The scale at which probabilities min(1, exp(score - scale)) sum to `wanted` is sought from the
/// largest score on, in rounds.
inline constexpr int kScaleRounds = 16;
/// What a scale makes of the scores that it is sought from.
struct ScaleSums {
  int n_above = 0;     // scores above the scale
  uint32_t units = 0;  // weight_units of the others, relative to it
};
/// By how much a round moves the scale; the last round is one that moves it little.
/// each     keys that a score stands for
constexpr float scale_change(const ScaleSums& sums, float each, float wanted) {
  const float rest = wanted - each * static_cast<float>(sums.n_above);
  if (rest <= 0) return 0;
  // Weights far below the scale have lost their last bits: not down to these at once.
  constexpr float kMostDown = -6.0f;
  if (sums.units == 0) return kMostDown;
  const float sum = each * (static_cast<float>(sums.units) * (1.0f / (1 << kWeightBits)));
  const float change = -minus_log(sum / rest);
  return change < kMostDown ? kMostDown : change;
}
constexpr bool ends_search(float change) { return change < 0.01f && change > -0.01f; }

/// Budgets by error: keys that the error is first judged from; deviations that 95 of 100 errors
/// stay within, 1.96 of normal ones, but ratios of weights are skewed; and deviations above the
/// mean that 5 of 100 exceed.
inline constexpr int kErrorPilot = 128;
inline constexpr double kWithin95 = 2.3, kUpper95 = 1.645;

}  // namespace
}  // namespace tandem
