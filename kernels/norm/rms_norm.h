#pragma once
// Contract of rms_norm. No STL: included by sources compiled with per-ISA flags.
#include "base/types.h"

namespace tandem {

struct RmsNormParams {
  void* out;            // [n_rows, dim] act
  const float* x;       // [n_rows, dim]; with `rows` [n_x, dim]
  const float* weight;  // [dim]; null: x is not normalised
  int n_rows, dim;
  float eps;                      // added to the mean square
  DType act;                      // bf16 or f32
  const int32_t* rows = nullptr;  // [n_rows], 0 <= row < n_x: out[r] is of x[rows[r]]; or null
  int n_x = 0;                    // read on a GPU alone, whose rows the host has not seen
  float scale = 1;                // multiplies the result
  bool adds = false;              // the result is added to out, which is f32
};

/// Root-mean-square normalisation: out = scale x / sqrt(mean(x^2) + eps) * weight, row by row;
/// without a weight out = scale x.
/// layout   rows contiguous; with act f32 and without rows, out may be x. `rows` not with adds, nor
///          without a weight
/// numerics f32 throughout, one rounding to act; |out - ref| <= (eps_act + (4 + dim/16) eps_f32)
///          |ref|, with adds of the number added and eps_f32 |out| more. A row's result does not
///          depend on n_rows or on the other rows
/// cost     reads n_rows * dim * 4 bytes, writes n_rows * dim * act bytes
/// errors   none (preconditions checked by ops)
using RmsNormFn = void(const RmsNormParams&, Range rows);
RmsNormFn rms_norm_ref, rms_norm_scalar, rms_norm_avx2, rms_norm_avx512, rms_norm_avx512_bf16;

/// The same on a GPU, with pointers into device memory.
/// numerics as above; a row's result depends on nothing but the row
/// cost     reads each row once (it is kept in registers up to 16,384 elements, read twice beyond)
void rms_norm_cuda(const RmsNormParams&, Stream);

}  // namespace tandem
