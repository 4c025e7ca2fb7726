#pragma once
// Contracts of the norms of rows of W + gamma B A, which DoRA scales outputs by. No STL.
#include "base/types.h"

namespace tandem {

/// The least norm that is divided by: rows of zeros exist.
inline constexpr float kLeastWeightNorm = 1e-6f;

struct RowSquaresParams {
  float* squares;       // [rows]
  const void* weights;  // [rows, in] act
  int rows, in;
  DType act;          // f32 or bf16
  bool root = false;  // of these sums, not less than kLeastWeightNorm: first magnitudes
};

/// squares[o] = sum of the squares of row o, or its root.
/// numerics f64, one rounding, and one of the root
/// cost     reads the weights once, when a run begins: one portable body
using RowSquaresFn = void(const RowSquaresParams&, Range rows);
RowSquaresFn row_squares_cpu;
/// The same on a GPU, all rows, with pointers into device memory. Sums have a fixed order.
void row_squares_cuda(const RowSquaresParams&, Stream);

struct WeightNormsParams {
  float* scale;            // [rows] magnitude over norm
  const float* squares;    // [rows] of row_squares
  const float* wa;         // [rows, rank] W A^T
  const float* aa;         // [rank, rank] A A^T
  const void* b;           // [rows, rank] act
  const float* magnitude;  // [rows]
  float gamma;
  int rows, rank;
  DType act;  // f32 or bf16
};

/// scale[o] = magnitude[o] / max(n, kLeastWeightNorm), n^2 = |W_o|^2 + 2 gamma (W A^T)_o . B_o +
/// gamma^2 B_o A A^T B_o: the norm without B A. Exactly 1 of B = 0 and magnitudes
/// that are such norms.
/// numerics f64, one rounding
/// cost     rank^2 operations a row, once a step: one portable body
using WeightNormsFn = void(const WeightNormsParams&, Range rows);
WeightNormsFn weight_norms_cpu;
/// The same on a GPU, all rows, with pointers into device memory. Sums have a fixed order.
void weight_norms_cuda(const WeightNormsParams&, Stream);

}  // namespace tandem
