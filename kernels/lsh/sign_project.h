#pragma once
// Contract of sign_project. No STL: included by sources compiled with per-ISA flags.
#include "base/types.h"

namespace tandem {

struct SignProjectParams {
  uint64_t* bits;    // [n_rows, words], words = ceil(n_bits / 64); bits from n_bits on are 0
  const float* x;    // [n_rows, d]
  const float* w;    // [d, w_stride], column j at w + j; words * 64 columns are readable
  int64_t w_stride;  // floats from one row of w to the next
  int d, n_bits;
};

/// Signs of random projections (SimHash): bit j of row i is 1 iff x_i . w_j > 0. A zero row gives
/// zeros.
/// numerics f32 multiply-adds over d in order; a row's bits do not depend on the other rows
/// cost     2 * d * n_bits flops a row; w is read once per block of rows
/// errors   none
/// source   Charikar 2002; MagicPIG (arXiv 2410.16179) section 4.3
using SignProjectFn = void(const SignProjectParams&, Range rows);
SignProjectFn sign_project_ref, sign_project_scalar, sign_project_avx2, sign_project_avx512;

}  // namespace tandem
