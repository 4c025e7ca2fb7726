#pragma once
// Numbers in device code: tandem's storage types as CUDA's, and vectors of 16 bytes.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "base/types.h"

namespace tandem::cuda {

/// 16 bytes of T, moved in one access.
template <class T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T at[kSize];
};

/// 2^x within two units of the last place; 2^-inf = 0.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float quiet_nan() { return __int_as_float(0x7fc00000); }

/// kSize elements, moved in as few accesses of at most 16 bytes as they fill.
template <class T, int kSize>
struct alignas(kSize * sizeof(T) < 16 ? kSize * sizeof(T) : 16) Vector {
  T at[kSize];
};

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

__device__ inline float to_float(__half x) { return __half2float(x); }

template <class T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

/// Whether all of these addresses and a row of `n` T allow Pack accesses.
template <class T, class... P>
bool packable(int64_t n, const P*... p) {
  return n % Pack<T>::kSize == 0 && ((reinterpret_cast<uintptr_t>(p) % 16 == 0) && ...);
}

/// Calls f with a null pointer of the type that `act` names: f32 or bf16.
template <class F>
void with_act(DType act, F&& f) {
  if (act == DType::bf16)
    f(static_cast<__nv_bfloat16*>(nullptr));
  else
    f(static_cast<float*>(nullptr));
}

/// As with_act for the types that tables and files hold: f16 too.
template <class F>
void with_number(DType type, F&& f) {
  if (type == DType::f16)
    f(static_cast<__half*>(nullptr));
  else
    with_act(type, f);
}

}  // namespace tandem::cuda
