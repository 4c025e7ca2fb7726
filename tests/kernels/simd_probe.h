#pragma once
#include "base/types.h"

/// The operations of kernels/simd/vec.h over arrays, compiled once per ISA, so that a test can call
/// them. The first n elements of `x`, `y`, `z` are read; nothing past them.
struct SimdProbe {
  const float *x, *y, *z;  // [n]
  int n;
  float *exp, *exp2, *fma, *max, *select_lt;  // [n]: of x, of x, x*y+z, max(x,y), x<y ? z : x
  float* exp2_nonpositive;                    // [n]: of -|x|
  float* columns;  // where n >= 64 and lanes are 8 or 16: x as that many rows of 4, by columns
  float *add_all, *max_all;  // [1]: over x
  tandem::bf16* rounded;     // [n] of x
  float* widened;            // [n] of rounded
  float *even, *odd;         // [n / 2] of rounded, whole pairs of vectors alone
};
#define TANDEM_SIMD_PROBE(isa) void simd_probe_##isa(const SimdProbe&);
TANDEM_SIMD_PROBE(scalar)
TANDEM_SIMD_PROBE(avx2)
TANDEM_SIMD_PROBE(avx512)
TANDEM_SIMD_PROBE(avx512_bf16)
