#pragma once
// The best of many scores: contract. No STL: included by sources with per-ISA flags.
#include "base/types.h"

namespace tandem {

struct SelectTopParams {
  int32_t* ids;         // out [m + 16]: ascending
  float* threshold;     // out [1]: the m-th largest score; -inf if m >= n, else +inf if m = 0
  const float* scores;  // [n], no NaN
  int n, m;             // m >= 0
  int first_id;         // added to every id
  float* scratch;       // [n + 16]
};
/// The m largest scores (all if m >= n); of equal ones at the threshold the lowest ids. Returns how
/// many: min(m, n).
/// cost     two or three passes over the scores, in vectors
using SelectTopFn = int(const SelectTopParams&);
SelectTopFn select_top_ref, select_top_scalar, select_top_avx2, select_top_avx512;

struct SelectReachedParams {
  int32_t* ids;         // out, ascending; room for n + 16
  const float* scores;  // [n], no NaN
  int n;
  float floor;
};
/// The scores that are not below the floor. Returns how many.
/// cost     one pass over the scores, in vectors
using SelectReachedFn = int(const SelectReachedParams&);
SelectReachedFn select_reached_ref, select_reached_scalar, select_reached_avx2,
    select_reached_avx512;

}  // namespace tandem
