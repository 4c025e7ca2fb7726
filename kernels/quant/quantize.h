#pragma once
// Contract of quantize. No STL: included by sources compiled with per-ISA flags.
#include "base/types.h"

namespace tandem {

/// Scales that the search tries for a group: 1 times its own scale, and 16 other multiples of it.
inline constexpr int kScaleFactors = 16;
/// Returns multiple i, i < kScaleFactors, from 0.7 to 1.1 without 1.
constexpr float scale_factor(int i) {
  return 0.7f + 0.025f * static_cast<float>(i < 12 ? i : i + 1);
}
/// Scales are clamped to the largest finite f16.
inline constexpr float kMostScale = 65504.0f;
/// The largest number of an fp8 code.
inline constexpr float kMostFp8 = 448.0f;
/// Adding and subtracting it rounds numbers below 2^22 to nearest even; the sum's order is theirs.
inline constexpr float kRounder = 0x1.8p23f;

/// Codes of a format: q + zero + offset, where q, a whole number of scales, lies from low - zero to
/// high - zero.
struct CodeRule {
  float low, high, offset;
  bool has_zero;
};
namespace {  // so that the linker merges no copies for different instruction sets
constexpr CodeRule rule_of(Code code, Zero zero) {
  const bool four = code == Code::i4;
  if (zero == Zero::none) return four ? CodeRule{-8, 7, 8, false} : CodeRule{-128, 127, 0, false};
  return four ? CodeRule{0, 15, 0, true} : CodeRule{0, 255, -128, true};
}
}  // namespace

struct QuantizeParams {
  uint8_t* out;       // [rows, row_bytes] in the row form of base/weight_format.h; scales of fp8
                      // in f32, others in f16
  const float* in;    // [rows, width], finite
  int64_t row_bytes;  // whole groups
  int width;          // weights of a row
  int group;          // weights that share a scale; the last group may have fewer
  Code code;          // i4, i8 or fp8
  Zero zero;          // none or integer
  bool search;        // not of fp8
};

/// Turns rows of numbers into codes. Work items are rows.
/// An i4 group without zero has the scale x* / -8. x* is its first weight of the largest magnitude.
/// An i8 group without zero has the scale max |x| / 127.
/// A group with an integer zero has the scale (hi - lo) / levels. Its weights and 0 lie between lo
/// and hi. There are 15 or 255 levels. The zero is round(-lo / scale), less 128 for i8.
/// An fp8 group has the scale max |x| / 448. Quotients are rounded to nearest even in E4M3.
/// `search` chooses the multiple of the scale with the least sum of squared errors, and of lo and
/// hi for the zero. The scale itself wins a tie, then the smallest multiple.
/// numerics Scales are rounded as they are stored, before codes. Quotients x / scale are rounded to nearest even
///          and clamped. Every ISA gives the same bytes.
/// layout   weights past `width`, and all weights of a group of scale 0, have the code of 0
/// cost     reads each weight 3 times, and 17 times more with `search`, from L1 if the group fits
/// errors   none (preconditions checked by ops)
using QuantizeFn = void(const QuantizeParams&, Range rows);
/// The reference sums squared errors in f64, so that it may choose another of two close scales.
QuantizeFn quantize_ref, quantize_scalar, quantize_avx2, quantize_avx512;

}  // namespace tandem
