#pragma once
#include <cstdint>
#include <span>

#include "tensor/tensor.h"

/// Products of matrices: activations, gradients, small factors, rows of trainable weights. All are
/// on one device; on a GPU the work goes to the stream.
namespace tandem::ops {

/// A row-major matrix that may be some columns of another: `stride` numbers from row to row.
struct MatrixView {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t rows = 0, cols = 0, stride = 0;
  Device device = {};

  MatrixView(void* at, DType type, int64_t n_rows, int64_t n_cols, Device on = {})
      : data(at), dtype(type), rows(n_rows), cols(n_cols), stride(n_cols), device(on) {}
  explicit MatrixView(const Tensor& t)
      : MatrixView(t.raw(), t.dtype(), t.rows(), t.row_size(), t.device()) {}

  /// Rows [first, first + n).
  MatrixView slice(int64_t first, int64_t n) const {
    MatrixView part = *this;
    part.data = static_cast<char*>(data) + static_cast<size_t>(first * stride) * dtype_bytes(dtype);
    part.rows = n;
    return part;
  }
  /// Columns [first, first + n).
  MatrixView columns(int64_t first, int64_t n) const {
    MatrixView part = *this;
    part.data = static_cast<char*>(data) + static_cast<size_t>(first) * dtype_bytes(dtype);
    part.cols = n;
    return part;
  }
};

struct MatmulArgs {
  MatrixView c, a, b;
  bool a_transposed = false, b_transposed = false;
  float scale = 1.0f;  // 1 if accumulating: oneDNN has only slow code for both
  bool accumulate = false;
};

/// c = scale a b, or c += a b, of a and b or their transposes.
/// shapes   c [m, n]; a [m, k] or transposed [k, m]; b [k, n] or transposed [n, k]; a and b of one
///          dtype, f32 or bf16; c of that dtype or f32
/// numerics f32 accumulation, one rounding to c
/// errors   none (shapes are checked by TANDEM_CHECK); `workspace` as below
void matmul(const MatmulArgs& args, std::span<std::byte> workspace, Stream stream = {});

/// Chooses on a GPU how products of about that shape run, as tune_linear does; c is overwritten.
/// Does nothing on the CPU.
void tune_matmul(const MatmulArgs& args, std::span<std::byte> workspace, Stream stream);

/// For products of `dtype` whose three matrices have at most this many elements together. More than
/// a little only where the CPU does not multiply bf16 and widens it, or where some `adds` to bf16.
size_t matmul_workspace_bytes(DType dtype, int64_t elements, Device device = {}, bool adds = false);

}  // namespace tandem::ops
