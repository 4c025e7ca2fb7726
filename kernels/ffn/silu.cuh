#pragma once
// The gate of SwiGLU in device code.

namespace tandem::cuda {

/// 1 / (1 + exp(-gate)). Within 3 roundings to f32 of exact for f32 results. bf16 results need no
/// more than the quick exponential and reciprocal, whose error is 2^-14 of the one rounding to
/// bf16.
template <class T>
__device__ float sigmoid(float gate) {
  if constexpr (sizeof(T) == 2) {
    float inverse;  // of up to inf; __fdividef would give 0 from 2^126 on
    asm("rcp.approx.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + __expf(-gate)));
    return inverse;
  } else {
    return 1.0f / (1.0f + expf(-gate));
  }
}

/// gate / (1 + exp(-gate)), as exactly.
template <class T>
__device__ float silu(float gate) {
  if constexpr (sizeof(T) == 2)
    return gate * sigmoid<T>(gate);
  else
    return gate / (1.0f + expf(-gate));
}

}  // namespace tandem::cuda
