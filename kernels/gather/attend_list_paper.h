#pragma once
// The sampled attention of the MagicPIG reference program, rebuilt from a description of its loops:
// the opponent of attend_list in the bench, not used by the library.
#include "base/types.h"

namespace tandem {

struct AttendListPaperParams {
  bf16* o;             // [d] out
  float* lse;          // [1] out, natural log
  const bf16* q;       // [d]
  const bf16* k;       // [n, d] centred keys
  const bf16* v;       // [n, d]
  const float* norms;  // [n] |k|
  const int32_t* ids;  // [n_ids], readable up to the next multiple of 16, with tokens there too
  int n_ids;
  int d;             // a multiple of 32
  float scale;       // multiplies scores
  float q_norm;      // |q|
  int bits, tables;  // K and L; at least two tables must agree
  float* scores;     // scratch [n_ids rounded up to 16]
};

/// Softmax attention over the listed keys with weights 1 / (u + 1e-4), loop for loop as the
/// reference does it, as slow and as inexact. Scores more than 88 below the largest, a norm of 0
/// and a cosine beyond 1 give what they give there.
using AttendListPaperFn = void(const AttendListPaperParams&);
AttendListPaperFn attend_list_paper_avx512_bf16;

}  // namespace tandem
