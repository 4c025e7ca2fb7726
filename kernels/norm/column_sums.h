#pragma once
// Contract of column_sums. No STL: included by sources compiled with per-ISA flags.
#include "base/types.h"

namespace tandem {

struct ColumnSumsParams {
  float* sums;     // [dim], added to
  const void* dy;  // [n_rows, dim] of dy_type
  int n_rows, dim;
  DType dy_type;                  // f32 or bf16
  const void* x = nullptr;        // [n_rows, dim] of x_type, with `rows` [n_x, dim]; or null
  const float* scale = nullptr;   // [n_rows], with x
  DType x_type = DType::f32;      // f32 or bf16
  const int32_t* rows = nullptr;  // [n_rows]: dy[r] meets x[rows[r]]; or null
};

/// Gradient of a bias, sums[c] += sum_r dy[r, c], or with x of a norm's weight:
/// sums[c] += sum_r dy[r, c] * x[r, c] * scale[r].
/// layout   rows contiguous; nothing aliases
/// numerics f32; rows are added in order, so that the division of columns among threads does not
///          show; |out - ref| <= (n_rows + 2) eps_f32 (|sums before| + sum |terms|)
/// cost     reads dy and x once
/// errors   none (preconditions checked by ops)
using ColumnSumsFn = void(const ColumnSumsParams&, Range columns);
ColumnSumsFn column_sums_ref, column_sums_scalar, column_sums_avx2, column_sums_avx512;

/// The same on a GPU, all columns, with pointers into device memory.
/// numerics 16 sums of every 16th row, added in order: the same bits on every run
void column_sums_cuda(const ColumnSumsParams&, Stream);

}  // namespace tandem
