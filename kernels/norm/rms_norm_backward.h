#pragma once
// Contract of rms_norm_backward. No STL: included by sources compiled with per-ISA flags.
#include "base/types.h"

namespace tandem {

struct RmsNormBackwardParams {
  float* dx;            // [n_rows, dim]; with `rows` [n_x, dim]: has the residual's gradient
  const void* dy;       // [n_rows, dim] of dy_type
  const void* x;        // as dx, of x_type: the input of the norm
  const float* weight;  // [dim]; null: x was not normalised, and is not read
  int n_rows, dim;
  float eps;                      // added to the mean square
  DType dy_type, x_type;          // f32 or bf16
  const int32_t* rows = nullptr;  // [n_rows], distinct: dy[r] belongs to x[rows[r]]; or null
  float* inverse = nullptr;       // [n_rows] gets scale / sqrt(mean(x^2) + eps); or null
  float scale = 1;                // rms_norm had it
};

/// Input gradient of rms_norm, added to what dx holds: with n = x / sqrt(mean(x^2) + eps) and
/// h = dy * weight, dx += inverse * (h - n * mean(h * n)), row by row. Without a
/// weight dx += scale * dy.
/// layout   rows contiguous; nothing aliases
/// numerics f32 throughout; |out - ref| <= (10 + dim/8) eps_f32 (|dx before| + inverse (|h| + |n|
///          mean |h n|)). A row's result does not depend on n_rows or on the other rows
/// cost     reads x, dy and dx once from memory, writes dx
/// errors   none (preconditions checked by ops)
using RmsNormBackwardFn = void(const RmsNormBackwardParams&, Range rows);
RmsNormBackwardFn rms_norm_backward_ref, rms_norm_backward_scalar, rms_norm_backward_avx2,
    rms_norm_backward_avx512;

/// The same on a GPU, all rows, with pointers into device memory.
void rms_norm_backward_cuda(const RmsNormBackwardParams&, Stream);

}  // namespace tandem
