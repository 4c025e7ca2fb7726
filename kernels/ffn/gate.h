#pragma once
// The activations of gated FFNs. No STL: included by sources compiled with per-ISA flags.
#include <stdint.h>

namespace tandem {

/// The activation of a gate g: g s, where s = 1 / (1 + exp(-z)).
enum class Gate : uint8_t {
  silu,       // z = g
  gelu_tanh,  // z = 2 sqrt(2 / pi) (g + 0.044715 g^3): gelu_pytorch_tanh of transformers
  gelu,       // s is the normal distribution's of g, z its logit
  relu,       // s = 0 up to g = 0, then 1
};
/// True of gates that products compute with them; the others are a separate kernel.
constexpr bool is_fused(Gate gate) { return gate == Gate::silu || gate == Gate::gelu_tanh; }

/// z of gelu_tanh is g (kGeluLinear + kGeluCubic g^2).
inline constexpr double kGeluLinear = 1.5957691216057308, kGeluCubic = 0.044715 * kGeluLinear;

/// z of relu: beyond any exponent on the side of s = 1 or 0, from the least normal numbers on.
inline constexpr double kReluSlope = 1e38, kReluReach = 200;

template <class V>
constexpr V polynomial(V, V last) {
  return last;
}
/// c + t (c1 + t (c2 + ..)).
template <class V, class... More>
constexpr V polynomial(V t, V c, More... more) {
  return c + t * polynomial(t, more...);
}

/// z of gelu is g R(g^2), with R = P / Q within 6e-8 of exact up to g^2 = kGeluReach; s is 0 or 1
/// in all its digits beyond.
inline constexpr double kGeluReach = 90.25;
template <class V>
struct GeluRatio {
  V value, slope;  // R and R'

  /// num      makes a V of a constant
  template <class Num>
  constexpr GeluRatio(V t, const Num& num) {
    const V p =
        polynomial(t, num(1.5957690356099265), num(0.35380109855339286), num(0.039311323625571595),
                   num(0.0025094523143032507), num(7.7483948560381314e-5),
                   num(6.3758572499407684e-7), num(5.2182933949303629e-10));
    const V dp = polynomial(t, num(0.35380109855339286), num(2 * 0.039311323625571595),
                            num(3 * 0.0025094523143032507), num(4 * 7.7483948560381314e-5),
                            num(5 * 6.3758572499407684e-7), num(6 * 5.2182933949303629e-10));
    const V q = polynomial(t, num(1.0), num(0.176171673158622), num(0.016658540782142913),
                           num(0.00088743978773671524), num(1.6817360881754818e-5),
                           num(5.4924312720528368e-8));
    const V dq = polynomial(t, num(0.176171673158622), num(2 * 0.016658540782142913),
                            num(3 * 0.00088743978773671524), num(4 * 1.6817360881754818e-5),
                            num(5 * 5.4924312720528368e-8));
    value = p / q;
    slope = (dp - value * dq) / q;
  }
};
template <class F>
struct GateConstant {
  constexpr F operator()(double c) const { return F(c); }
};
template <class F>
constexpr F gelu_argument(F g) {
  return g * g < F(kGeluReach) ? g * g : F(kGeluReach);
}

/// z of a gate, and g z', which its slope s (1 + g z' (1 - s)) contains; of those that products
/// compute.
template <class F>
constexpr F fused_exponent(Gate gate, F g) {
  return gate == Gate::silu ? g : g * (F(kGeluLinear) + F(kGeluCubic) * g * g);
}
/// Adds the other gates.
template <class F>
constexpr F gate_exponent(Gate gate, F g) {
  if (is_fused(gate)) return fused_exponent(gate, g);
  if (gate == Gate::gelu) return g * GeluRatio<F>(gelu_argument(g), GateConstant<F>()).value;
  return g > F(0) ? F(kReluReach) : F(-kReluReach);
}
template <class F>
constexpr F gate_growth(Gate gate, F g) {
  if (gate == Gate::silu) return g;
  if (gate == Gate::gelu_tanh) return g * (F(kGeluLinear) + F(3 * kGeluCubic) * g * g);
  if (gate == Gate::relu) return F(0);
  const F t = gelu_argument(g);
  const GeluRatio<F> r(t, GateConstant<F>());
  return g * (r.value + F(2) * t * r.slope);
}

/// Calls f with a constant of this value.
template <Gate kGate>
struct OfGate {
  static constexpr Gate value = kGate;
  constexpr operator Gate() const { return kGate; }
};
template <class F>
void with_gate(Gate gate, F&& f) {
  switch (gate) {
    case Gate::silu:
      return f(OfGate<Gate::silu>());
    case Gate::gelu_tanh:
      return f(OfGate<Gate::gelu_tanh>());
    case Gate::gelu:
      return f(OfGate<Gate::gelu>());
    case Gate::relu:
      return f(OfGate<Gate::relu>());
  }
}

}  // namespace tandem
