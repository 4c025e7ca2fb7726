#include "kernels/code/code.h"

namespace tandem {
namespace {

/// In place, over n numbers, a power of two.
void hadamard(float* x, int n) {
  for (int half = 1; half < n; half *= 2)
    for (int i = 0; i < n; i += 2 * half)
      for (int j = i; j < i + half; ++j) {
        const float a = x[j], b = x[j + half];
        x[j] = a + b;
        x[j + half] = a - b;
      }
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(n));
  for (int i = 0; i < n; ++i) x[i] *= scale;
}

}  // namespace

void TANDEM_ISA_FN(rotate_rows)(const RotateRowsParams& p, Range rows) {
  int size = 1;
  while (2 * size <= p.dims) size *= 2;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    float* x = p.rows + r * p.dims;
    for (int turn = 0; turn < 2; ++turn) {
      const float* signs = p.signs + turn * p.dims;
      for (int c = 0; c < p.dims; ++c) x[c] *= signs[c];
      hadamard(x, size);
      if (size < p.dims) hadamard(x + p.dims - size, size);
    }
  }
}

void TANDEM_ISA_FN(rotate_rows_back)(const RotateRowsParams& p, Range rows) {
  int size = 1;
  while (2 * size <= p.dims) size *= 2;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    float* x = p.rows + r * p.dims;
    for (int turn = 1; turn >= 0; --turn) {
      const float* signs = p.signs + turn * p.dims;
      if (size < p.dims) hadamard(x + p.dims - size, size);
      hadamard(x, size);
      for (int c = 0; c < p.dims; ++c) x[c] *= signs[c];
    }
  }
}

}  // namespace tandem
