#pragma once
// Pairs of f16 in one register, the first in the lower half.
#include <stdint.h>

namespace tandem::cuda {

/// Two numbers rounded to the nearest f16; those beyond its range become infinite.
__device__ inline uint32_t pack_f16(float lower, float upper) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(upper), "f"(lower));
  return packed;
}

/// The larger of each two; of a NaN and a number the number.
__device__ inline uint32_t max_f16(uint32_t a, uint32_t b) {
  uint32_t larger;
  asm("max.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}

}  // namespace tandem::cuda
