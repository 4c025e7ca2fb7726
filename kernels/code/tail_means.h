#pragma once
// The tail of a selection from estimated weights and means of values: contract. No STL: included by
// sources with per-ISA flags.
#include "base/types.h"

namespace tandem {

inline constexpr int kMeanKeys = 256;  // keys whose values share a mean

struct TailMassesParams {
  float* masses;        // [ceil(n / kMeanKeys)] out
  const float* scores;  // [n] estimated log weights; -inf: not in the tail
  int n;
  float most;    // larger scores count as this one
  float origin;  // masses are relative to exp(origin)
};
/// Sums of exp(min(score, most) - origin) over runs of kMeanKeys keys.
/// numerics f32; relative error 1e-6 where a run's terms are of one size
using TailMassesFn = void(const TailMassesParams&);
TailMassesFn tail_masses_ref, tail_masses_scalar, tail_masses_avx2, tail_masses_avx512;

/// Means of values over runs of kMeanKeys keys.
struct MeanRows {
  const bf16* means;  // [n, d]
  int n;
};

struct AddMeansParams {
  float* o;              // [d] in: attention over a list; out: over the list and the tail
  float* lse;            // [1] in and out
  const float* masses;   // of all rows in turn, relative to exp(origin); corrected ones may be < 0
  const MeanRows* rows;  // [n_rows]
  int n_rows, d;
  float origin;
};
/// Attention over a list and a tail whose run b weighs masses[b] and has the value means[b]:
/// o = (exp(lse) o + exp(origin) sum_b masses[b] means[b]) / exp(lse'), lse' the log of all
/// weights. Where masses leave less than a thousandth of the list's weight, o and lse stay the
/// list's.
/// numerics f32; |o - ref| <= 1e-5 of the largest value and mean where no mass is negative
using AddMeansFn = void(const AddMeansParams&);
AddMeansFn add_means_ref, add_means_scalar, add_means_avx2, add_means_avx512;

}  // namespace tandem
