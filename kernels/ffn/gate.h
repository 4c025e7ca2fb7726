#pragma once
// The activations of gated FFNs. No STL: included by sources compiled with per-ISA flags.
#include <stdint.h>

namespace tandem {

/// The activation of a gate g: g s, where s = 1 / (1 + exp(-z)).
enum class Gate : uint8_t {
  silu,       // z = g
  gelu_tanh,  // z = 2 sqrt(2 / pi) (g + 0.044715 g^3): gelu_pytorch_tanh of transformers
};

/// z of gelu_tanh is g (kGeluLinear + kGeluCubic g^2).
inline constexpr double kGeluLinear = 1.5957691216057308, kGeluCubic = 0.044715 * kGeluLinear;

/// z of a gate, and g z', which its slope s (1 + g z' (1 - s)) contains.
template <class F>
constexpr F gate_exponent(Gate gate, F g) {
  return gate == Gate::silu ? g : g * (F(kGeluLinear) + F(kGeluCubic) * g * g);
}
template <class F>
constexpr F gate_growth(Gate gate, F g) {
  return gate == Gate::silu ? g : g * (F(kGeluLinear) + F(3 * kGeluCubic) * g * g);
}

}  // namespace tandem
