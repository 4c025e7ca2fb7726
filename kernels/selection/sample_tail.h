#pragma once
// Sampling keys by estimated weight: contract. No STL: included by sources with per-ISA flags.
#include "base/types.h"

namespace tandem {

struct DrawExponentialsParams {
  float* draws;  // [n] out
  uint32_t key;  // another key, other draws
};
/// Standard exponential variates for ids [begin, end), at draws[id]: -log of a uniform number that
/// is a function of key and id alone.
/// numerics good to 2e-5, the same bits from every variant but the reference; at most 15.95, the
///          logarithm of the 23 bits that are drawn
using DrawExponentialsFn = void(const DrawExponentialsParams&, Range ids);
DrawExponentialsFn draw_exponentials_ref, draw_exponentials_scalar, draw_exponentials_avx2,
    draw_exponentials_avx512;

struct SampleTailParams {
  int32_t* ids;         // out: ascending; room for n + 16
  float* bias;          // out: minus the log of each one's probability; room for n + 16
  const float* scores;  // [n] estimated log weights are gain * score
  const float* draws;   // [n] of draw_exponentials
  int n, first_id;      // first_id is added to every id
  float threshold;      // keys with a larger score are left out
  float gain;           // >= 0
  float wanted;         // expected number of keys, > 0
};
/// Poisson sampling: key i is taken if draws[i] >= -log u_i, hence with probability u_i =
/// min(1, exp(gain * score_i) / scale). The scale is chosen from at most 1,024 of the scores so
/// that about `wanted` keys are taken; with any scale, weights 1 / u_i make sums over the sample
/// unbiased. While more than most_sampled(wanted) are taken (tail_numbers.h), the scale rises by
/// kScaleRise: whether a key is taken then, and at which scale, still follows from the other keys'
/// draws and a bound that its own has to reach, and sums stay unbiased. Returns how many.
/// numerics the same sample from every variant but the reference
/// cost     one pass over scores and draws, in vectors
using SampleTailFn = int(const SampleTailParams&);
SampleTailFn sample_tail_ref, sample_tail_scalar, sample_tail_avx2, sample_tail_avx512;

}  // namespace tandem
