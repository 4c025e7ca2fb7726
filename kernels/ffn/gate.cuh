#pragma once
// Gates in device code.
#include <type_traits>

#include "kernels/ffn/gate.h"

namespace tandem::cuda {

/// s = 1 / (1 + exp(-z)). Within 3 roundings to f32 of exact for f32 results, in addition to those
/// of z. bf16 results need no more than the quick exponential and reciprocal, whose error is 2^-14
/// of the one rounding to bf16.
template <class T>
__device__ float gate_sigmoid(Gate gate, float g) {
  const float z = gate_exponent(gate, g);
  if constexpr (sizeof(T) == 2) {
    float inverse;  // of up to inf; __fdividef would give 0 from 2^126 on
    asm("rcp.approx.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + __expf(-z)));
    return inverse;
  } else {
    return 1.0f / (1.0f + expf(-z));
  }
}

/// g s, with the same errors.
template <class T>
__device__ float gate_value(Gate gate, float g) {
  if constexpr (sizeof(T) == 2)
    return g * gate_sigmoid<T>(gate, g);
  else
    return g / (1.0f + expf(-gate_exponent(gate, g)));
}

/// g s up, for results of either type: the exponential is quick, the quotient exact.
__device__ inline float gated(Gate gate, float g, float up) {
  return g / (1.0f + __expf(-gate_exponent(gate, g))) * up;
}

/// The derivative of g s is s times this: 1 + g z' (1 - s).
__device__ inline float gate_slope_over_s(Gate gate, float g, float s) {
  return fmaf(gate_growth(gate, g), 1.0f - s, 1.0f);
}

/// Calls f with a constant of this value.
template <class F>
void with_gate(Gate gate, F&& f) {
  if (gate == Gate::silu)
    f(std::integral_constant<Gate, Gate::silu>());
  else
    f(std::integral_constant<Gate, Gate::gelu_tanh>());
}

}  // namespace tandem::cuda
