#pragma once
// The rotation of code.h for one row in shared memory, by a warp.
#include "kernels/cuda/reduce.cuh"

namespace tandem {

__device__ inline void hadamard(float* x, int n, int lane) {
  for (int shift = 0; 1 << shift < n; ++shift) {
    const int half = 1 << shift;
    for (int i = lane; i < n / 2; i += cuda::kWarp) {
      const int j = (i >> shift << (shift + 1)) + (i & (half - 1));
      const float a = x[j], b = x[j + half];
      x[j] = a + b;
      x[j + half] = a - b;
    }
    __syncwarp();
  }
  const float scale = 1.0f / sqrtf(static_cast<float>(n));
  for (int i = lane; i < n; i += cuda::kWarp) x[i] *= scale;
  __syncwarp();
}

/// All lanes see the row before and after.
__device__ inline void rotate_row(float* x, const float* signs, int dims, int lane) {
  int size = 1;
  while (2 * size <= dims) size *= 2;
  for (int turn = 0; turn < 2; ++turn) {
    for (int c = lane; c < dims; c += cuda::kWarp) x[c] *= signs[turn * dims + c];
    __syncwarp();
    hadamard(x, size, lane);
    if (size < dims) hadamard(x + dims - size, size, lane);
  }
}

}  // namespace tandem
