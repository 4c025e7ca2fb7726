#pragma once
// 2^x for probabilities that are rounded to bf16. Included by AVX-512 files only.
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

/// Relative error <= 7.6e-5, a fiftieth of a bf16 unit; 2^-inf = 0, and no clamp is needed:
/// vreduceps makes the fraction of -inf zero and vscalefps takes the floor of its exponent. Five
/// instructions.
TANDEM_INLINE simd::Vec fast_exp2(simd::Vec x) {
  const simd::Vec f{_mm512_reduce_ps(x.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
  simd::Vec p = fma(simd::set1(0.0780245227f), f, simd::set1(0.226067155f));
  p = fma(p, f, simd::set1(0.695833541f));
  p = fma(p, f, simd::set1(0.999925219f));
  return {_mm512_scalef_ps(p.v, x.v)};
}

}  // namespace
}  // namespace tandem
