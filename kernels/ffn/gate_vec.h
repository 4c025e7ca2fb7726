#pragma once
// Gates in vectors. Included by ISA files only.
#include "kernels/ffn/gate.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

/// 1 / s = 1 + exp(-z).
TANDEM_INLINE simd::Vec gate_divisor(Gate gate, simd::Vec g) {
  using namespace simd;
  Vec z = g;
  if (gate == Gate::gelu_tanh)
    z = g * fma(set1(float(kGeluCubic)), g * g, set1(float(kGeluLinear)));
  return set1(1.0f) + exp(zero() - z);
}

/// g s.
TANDEM_INLINE simd::Vec gate_value(Gate gate, simd::Vec g) { return g / gate_divisor(gate, g); }

/// The derivative of g s, which is s (1 + g z' (1 - s)).
TANDEM_INLINE simd::Vec gate_slope(Gate gate, simd::Vec g, simd::Vec s) {
  using namespace simd;
  Vec growth = g;  // g z'
  if (gate == Gate::gelu_tanh)
    growth = g * fma(set1(float(3 * kGeluCubic)), g * g, set1(float(kGeluLinear)));
  // 1 - s as exp(-z) s would be inf * 0 for a saturated gate.
  return s * fma(growth, set1(1.0f) - s, set1(1.0f));
}

}  // namespace
}  // namespace tandem
