#pragma once
// Projections in the form in which tensor cores take them: contract.
#include <stddef.h>

#include "base/types.h"

namespace tandem {

/// A lane's share of a tile of 16 coordinates by 8 columns (kernels/cuda/mma_bf16.cuh): b0 and b1,
/// each of two numbers, of the projections rounded to bf16 and of what that leaves, rounded too.
struct alignas(16) ProjectionPart {
  uint32_t upper[2], lower[2];
};

/// Coordinates of whole tiles.
constexpr int projection_dims(int d) { return (d + 15) / 16 * 16; }
/// Tiles of some columns times lanes.
constexpr size_t projection_parts(int d, int n_columns) {
  return static_cast<size_t>((n_columns + 7) / 8) * static_cast<size_t>(projection_dims(d) / 16) *
         32;
}

struct SplitProjectionsParams {
  ProjectionPart* parts;  // [n_columns / 8, projection_dims / 16, 32] out
  float* columns;  // [n_columns, projection_dims] out: each column in one piece, zeros after it
  const float* w;  // [d, w_stride], column j at w + j
  int64_t w_stride;
  int d, n_columns;  // n_columns a multiple of 8
};
/// Splits every number into two of bf16, whose sum is off by 2^-16 of it at most, and turns the
/// projections. Returns the length of the longest column, or a little more.
/// cost     reads w twice
/// errors   none (preconditions checked by the caller)
float split_projections(const SplitProjectionsParams&);

}  // namespace tandem
