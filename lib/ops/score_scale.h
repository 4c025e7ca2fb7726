#pragma once
#include <cmath>

namespace tandem::ops {

/// The factor of attention scores: 1 / sqrt(of), or `times` if that is not 0. Each reader takes the
/// form that it computes with: the three differ in their last bits.
struct ScoreScale {
  double of = 0;     // size of a head; Gemma: query_pre_attn_scalar
  double times = 0;  // Granite: attention_multiplier

  float f32() const {
    return times != 0 ? static_cast<float>(times) : 1.0f / std::sqrt(static_cast<float>(of));
  }
  double f64() const { return times != 0 ? times : 1.0 / std::sqrt(of); }
  /// The divisor that f32() is the inverse of.
  float root() const {
    return times != 0 ? static_cast<float>(1 / times) : std::sqrt(static_cast<float>(of));
  }
  bool operator==(const ScoreScale&) const = default;
};

}  // namespace tandem::ops
