#pragma once
// Gates in vectors. Included by ISA files only.
#include "kernels/ffn/gate.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

struct VecConstant {
  TANDEM_INLINE simd::Vec operator()(double c) const { return simd::set1(float(c)); }
};

/// R of gelu and the t that it is taken at.
struct GeluOf {
  simd::Vec t;
  GeluRatio<simd::Vec> ratio;

  TANDEM_INLINE explicit GeluOf(simd::Vec g)
      : t(simd::min(g * g, simd::set1(float(kGeluReach)))), ratio(t, VecConstant()) {}
};

/// z of a gate.
TANDEM_INLINE simd::Vec gate_argument(Gate gate, simd::Vec g) {
  using namespace simd;
  if (gate == Gate::gelu_tanh)
    return g * fma(set1(float(kGeluCubic)), g * g, set1(float(kGeluLinear)));
  if (gate == Gate::gelu) return g * GeluOf(g).ratio.value;
  const Vec reach = set1(float(kReluReach));
  if (gate == Gate::relu)
    return max(min(g * set1(float(kReluSlope)) - reach, reach), zero() - reach);
  return g;
}

/// 1 / s = 1 + exp(-z).
TANDEM_INLINE simd::Vec gate_divisor(Gate gate, simd::Vec g) {
  using namespace simd;
  return set1(1.0f) + exp(zero() - gate_argument(gate, g));
}

/// g s.
TANDEM_INLINE simd::Vec gate_value(Gate gate, simd::Vec g) { return g / gate_divisor(gate, g); }

/// The derivative of g s, which is s (1 + g z' (1 - s)).
TANDEM_INLINE simd::Vec gate_slope(Gate gate, simd::Vec g, simd::Vec s) {
  using namespace simd;
  Vec growth = g;  // g z'
  if (gate == Gate::gelu_tanh)
    growth = g * fma(set1(float(3 * kGeluCubic)), g * g, set1(float(kGeluLinear)));
  if (gate == Gate::gelu) {
    const GeluOf of(g);
    growth = g * fma(of.t + of.t, of.ratio.slope, of.ratio.value);
  }
  if (gate == Gate::relu) return s;
  // 1 - s as exp(-z) s would be inf * 0 for a saturated gate.
  return s * fma(growth, set1(1.0f) - s, set1(1.0f));
}

}  // namespace
}  // namespace tandem
