#pragma once
// The small vector type that operation bodies (*.inl) are written on: one f32 vector `Vec` and one
// lane mask `Mask` per ISA, chosen by the TANDEM_ISA_<isa> macro that tandem_isa_kernels defines.
// All is in an unnamed namespace, since each including source is compiled with other flags.
//
//   Vec::kLanes                      1 (scalar), 8 (avx2), 16 (avx512, avx512_bf16, amx)
//   zero() set1(x)                   constants
//   load(p) store(p, v)              unaligned, float*, bf16*, f16* or int8_t*; 16-bit stores round
//   to nearest even, 8-bit ones too, of numbers from -128 to 127 load_n(p, n) store_n(p, v, n) the
//   first n lanes, 0 <= n <= kLanes; the rest reads as 0 and
//                                    no byte past them is touched
//   load_even_odd(p, e, o)           2 * kLanes bf16: those at even places to e, at odd ones to o
//   a+b a-b a*b a/b  fma(a,b,c)      fma = a*b + c (one rounding, two on scalar); fnma = c - a*b
//   max min sqrt abs                 max(a, b) and min(a, b) return b where either is NaN
//   lt(a,b) first_lanes(n) mask_of_bits(u) bits_of(m)  a & b  a | b     masks; bit i = lane i
//   select(m, a, b)                  a where m is set, else b
//   reduce_add(v) reduce_max(v)      a fixed tree, so the result depends on the lanes alone
//   exp(v) exp2(v)                   relative error <= 1.5e-7; -inf gives 0, overflow inf, NaN NaN
//   exp2_nonpositive(v)              the same for v <= 0 in half the instructions; results below
//                                    2^-126 may be 0, and from 2^-127.5 down they are
//   max_of_each(r[kLanes])           lane i: reduce_max(r[i])
//   not on scalar:
//   load_fours(p, stride)            four floats each from rows 0, 4, ... of kLanes rows
//   transpose_fours(r[4])            of load_fours from rows 0 to 3: r[c] is column c of the rows
//   split_pairs(p, e, o)             lanes of two bf16: the first of each to e, the second to o
//   join_pairs(e, o, a, b)           numbers of e and o in turn: the first kLanes to a, rest to b
//
// Subnormals: a bf16 store flushes them to zero on avx512_bf16 and amx (the instruction does), and
// keeps them elsewhere.
#include <stdint.h>

#include "base/log2.h"
#include "base/types.h"

#define TANDEM_INLINE inline __attribute__((always_inline))

#if defined(TANDEM_ISA_avx512) || defined(TANDEM_ISA_avx512_bf16) || defined(TANDEM_ISA_amx)
#include "kernels/simd/vec_avx512.h"
#elif defined(TANDEM_ISA_avx2)
#include "kernels/simd/vec_avx2.h"
#elif defined(TANDEM_ISA_scalar)
#include "kernels/simd/vec_scalar.h"
#else
#error "kernels/simd/vec.h is for sources listed in tandem_isa_kernels() only"
#endif

namespace tandem::simd {
namespace {

constexpr int kW = Vec::kLanes;  // lanes of a vector
constexpr float kInf = __builtin_inff();

/// Replaces std::min: the linker would merge copies of it compiled for different instruction sets.
TANDEM_INLINE int least(int a, int b) { return a < b ? a : b; }

/// One number, for remainders that are not worth a vector.
TANDEM_INLINE float to_f32(float x) { return x; }
TANDEM_INLINE float to_f32(bf16 x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16);
}
TANDEM_INLINE void store1(float* p, float x) { *p = x; }
TANDEM_INLINE void store1(bf16* p, float x) { store_n(p, set1(x), 1); }

/// e^r for |r| <= ln(2)/2: minimax fit of relative error 2.6e-9 with the constant term held at 1.
TANDEM_INLINE Vec exp_poly(Vec r) {
  Vec p = set1(1.40612404e-3f);
  p = fma(p, r, set1(8.37901116e-3f));
  p = fma(p, r, set1(4.16647773e-2f));
  p = fma(p, r, set1(1.66663654e-1f));
  p = fma(p, r, set1(5.00000043e-1f));
  p = fma(p, r, set1(1.0f));
  return fma(p, r, set1(1.0f));
}

/// e^x. The argument is clamped to where the result is 0 or inf; the bound comes first in max and
/// min so that a NaN passes through.
TANDEM_INLINE Vec exp(Vec x) {
  x = min(set1(89.0f), max(set1(-104.0f), x));
  const Vec n = round(x * set1(kLog2E));
  // ln 2 in two parts, the first with 9 trailing zero bits: n * high is exact for |n| < 512.
  Vec r = fnma(n, set1(0x1.62e4p-1f), x);
  r = fnma(n, set1(1.42860677e-6f), r);
  return scale2(exp_poly(r), n);
}

/// 2^x.
TANDEM_INLINE Vec exp2(Vec x) {
  x = min(set1(129.0f), max(set1(-151.0f), x));
  const Vec n = round(x);
  return scale2(exp_poly((x - n) * set1(kLn2)), n);
}

/// 2^x for x <= 0.
TANDEM_INLINE Vec exp2_nonpositive(Vec x) {
  // The sum's unit is 1: adding rounds x to an integer n, and n + 127, the bits of 2^n, are its low
  // bits.
  const Vec unit = set1(0x1.8p23f + 127.0f);
  x = max(set1(-127.0f), x);  // 2^-127 is 0 in these bits
  const Vec n = x + unit, f = x - (n - unit);
  // exp_poly's coefficients times powers of ln 2.
  Vec p = set1(1.55946778e-4f);
  p = fma(p, f, set1(1.34066434e-3f));
  p = fma(p, f, set1(9.61769279e-3f));
  p = fma(p, f, set1(5.55031039e-2f));
  p = fma(p, f, set1(2.40226522e-1f));
  p = fma(p, f, set1(6.93147182e-1f));
  p = fma(p, f, set1(1.0f));
  return p * low_bits_as_exponent(n);
}

}  // namespace
}  // namespace tandem::simd
