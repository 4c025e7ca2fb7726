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
  const int8_t* bytes;       // [n]
  float* of_bytes;           // [n]
  int8_t* to_bytes;          // [n] of 10 x, from -128 to 127
  float *even, *odd;         // [n / 2] of rounded, whole pairs of vectors alone
  float* joined;             // [n] of even and odd in turn, where lanes are 8 or 16
};
/// The same of f16, and of rows as long as a vector.
struct SimdF16Probe {
  const float* x;         // [n], n a multiple of 256
  tandem::f16* rounded;   // [n]
  float *widened, *tops;  // [n] of rounded; [n / lanes] largest of each row of x
  int n;
};
#define TANDEM_SIMD_PROBE(isa)             \
  void simd_probe_##isa(const SimdProbe&); \
  void simd_f16_probe_##isa(const SimdF16Probe&);
TANDEM_SIMD_PROBE(scalar)
TANDEM_SIMD_PROBE(avx2)
TANDEM_SIMD_PROBE(avx512)
TANDEM_SIMD_PROBE(avx512_bf16)
