#pragma once
// The rotation of rows, in place, and back. Plain arithmetic in an unnamed namespace: for sources
// compiled with per-ISA flags.

namespace tandem {
namespace {

/// In place, over n numbers, a power of two.
inline void hadamard(float* x, int n) {
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

/// The largest power of two that is at most dims.
constexpr int hadamard_size(int dims) {
  int size = 1;
  while (2 * size <= dims) size *= 2;
  return size;
}

/// shapes   x [dims], signs [2, dims]
inline void rotate_row(float* x, const float* signs, int dims) {
  const int size = hadamard_size(dims);
  for (int turn = 0; turn < 2; ++turn) {
    for (int c = 0; c < dims; ++c) x[c] *= signs[turn * dims + c];
    hadamard(x, size);
    if (size < dims) hadamard(x + dims - size, size);
  }
}

/// Undoes rotate_row.
inline void rotate_row_back(float* x, const float* signs, int dims) {
  const int size = hadamard_size(dims);
  for (int turn = 1; turn >= 0; --turn) {
    if (size < dims) hadamard(x + dims - size, size);
    hadamard(x, size);
    for (int c = 0; c < dims; ++c) x[c] *= signs[turn * dims + c];
  }
}

}  // namespace
}  // namespace tandem
