#pragma once
// Contracts of DoRA's scaling of outputs: y = scale (x W'^T) + bias, where W' = W + gamma B A and
// scale = magnitude / |row of W'|. No STL: included by sources compiled with per-ISA flags.
#include "base/types.h"

namespace tandem {

/// All over columns [first, first + n) of matrices whose rows have `width` numbers.
struct MagnitudeScaleParams {
  void* out;       // [n_rows, width] act, may be `in`
  const void* in;  // [n_rows, width] act or f32
  int n_rows, width, first, n;
  const float* scale;           // [n]
  const float* bias = nullptr;  // [n] that `in` contains, and which is not scaled; or null
  float* sum = nullptr;         // [n_rows, width], gets the results added, unrounded; or null
  DType act, in_type;           // f32 or bf16
};

/// out = scale (in - bias) + bias. Where the scale is 1 the input's bits.
/// numerics f32, as scale in + (1 - scale) bias: |out - ref| <= one rounding to act +
///          4 eps_f32 (|scale in| + |(1 - scale) bias|)
/// cost     reads and writes each number once, and those of `sum`
/// errors   none (preconditions checked by ops)
using MagnitudeScaleFn = void(const MagnitudeScaleParams&, Range rows);
MagnitudeScaleFn magnitude_scale_ref, magnitude_scale_scalar, magnitude_scale_avx2,
    magnitude_scale_avx512, magnitude_scale_avx512_bf16;
/// The same on a GPU, all rows, with pointers into device memory.
void magnitude_scale_cuda(const MagnitudeScaleParams&, Stream);

struct MagnitudeGradientParams {
  float* sums;             // [n], added to
  const void *dy, *y;      // [n_rows, width] act; y as magnitude_scale has written it
  const float* magnitude;  // [n]
  int n_rows, width, first, n;
  const float* bias = nullptr;  // [n] or null
  DType act;                    // f32 or bf16
};

/// Gradient of the magnitudes, the norms held constant: sums[c] += sum_r dy[r, c] (y[r, c] -
/// bias[c]) / magnitude[c]; nothing where the magnitude is 0.
/// numerics f32; rows are added in order, so that the division of columns among threads does not
///          show; |out - ref| <= (n_rows + 4) eps_f32 (|sums before| + sum |terms|)
/// cost     reads dy and y once
using MagnitudeGradientFn = void(const MagnitudeGradientParams&, Range columns);
MagnitudeGradientFn magnitude_gradient_ref, magnitude_gradient_scalar, magnitude_gradient_avx2,
    magnitude_gradient_avx512;
/// The same on a GPU, all columns, with pointers into device memory.
/// numerics 16 sums of every 16th row, added in order: the same bits on every run
void magnitude_gradient_cuda(const MagnitudeGradientParams&, Stream);

}  // namespace tandem
