#pragma once
// Numbers of either type as plain references read and write them.
#include "base/convert.h"

namespace tandem {

/// Number i of an array of f32 or bf16.
inline double element(const void* p, DType type, int64_t i) {
  return type == DType::bf16 ? to_float(static_cast<const bf16*>(p)[i])
                             : static_cast<const float*>(p)[i];
}

template <class T>
T from_double(double x) {
  if constexpr (sizeof(T) == 2)
    return to_bf16(static_cast<float>(x));
  else
    return static_cast<float>(x);
}

/// Writes number i of an array of f32 or bf16.
inline void put(void* to, DType type, int64_t i, double x) {
  if (type == DType::bf16)
    static_cast<bf16*>(to)[i] = from_double<bf16>(x);
  else
    static_cast<float*>(to)[i] = from_double<float>(x);
}

}  // namespace tandem
