#pragma once
// Gates in device code.
#include "kernels/ffn/gate.h"

namespace tandem::cuda {

/// s = 1 / (1 + exp(-z)). Within 3 roundings to f32 of exact for f32 results, in addition to those
/// of z. bf16 results need no more than the quick exponential and reciprocal, whose error is 2^-14
/// of the one rounding to bf16.
template <class T>
__device__ float sigmoid_of(float z) {
  if constexpr (sizeof(T) == 2) {
    float inverse;  // of up to inf; __fdividef would give 0 from 2^126 on
    asm("rcp.approx.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + __expf(-z)));
    return inverse;
  } else {
    return 1.0f / (1.0f + expf(-z));
  }
}
template <class T>
__device__ float gate_sigmoid(Gate gate, float g) {
  return sigmoid_of<T>(gate_exponent(gate, g));
}

/// g s, with the same errors, from z.
template <class T>
__device__ float value_of(float g, float z) {
  if constexpr (sizeof(T) == 2)
    return g * sigmoid_of<T>(z);
  else
    return g / (1.0f + expf(-z));
}
template <class T>
__device__ float gate_value(Gate gate, float g) {
  return value_of<T>(g, gate_exponent(gate, g));
}
/// value_of gates that are fused with products.
template <class T>
__device__ float fused_value(Gate gate, float g) {
  return value_of<T>(g, fused_exponent(gate, g));
}

/// g s up, for results of either type: the exponential is quick, the quotient exact.
__device__ inline float gated(Gate gate, float g, float up) {
  return g / (1.0f + __expf(-fused_exponent(gate, g))) * up;
}

/// The derivative of g s is s times this: 1 + g z' (1 - s).
__device__ inline float gate_slope_over_s(Gate gate, float g, float s) {
  return fmaf(gate_growth(gate, g), 1.0f - s, 1.0f);
}

}  // namespace tandem::cuda
