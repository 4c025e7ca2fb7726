#pragma once
// Contract of tiled_linear, a dense layer on some tens of rows. No STL.
#include "base/types.h"
#include "kernels/ffn/gate.h"

namespace tandem {

/// Rows of x at most.
inline constexpr int kTiledRows = 128;

/// How the weights are divided among blocks. Only `parts` changes results, by rounding.
struct LinearTiling {
  int groups = 1;  // a block's tile is of 64 weight rows for each: 1 to 4
  int parts = 1;   // blocks that share the columns of a tile, and add up their sums
  int blocks = 1;  // that a multiprocessor has room for

  bool operator==(const LinearTiling&) const = default;
};

struct TiledLinearParams {
  void* y = nullptr;            // [rows, out] of y_type; with `gated` [rows, out / 2]
  const bf16* x = nullptr;      // [rows, in], 16-byte aligned like w, y and bias
  const bf16* w = nullptr;      // [out, in]
  const float* bias = nullptr;  // [out], or null
  int rows = 0, out = 0, in = 0;
  DType y_type = DType::f32;  // or bf16
  bool accumulate = false;    // y += instead of y =; f32
  bool gated = false;         // the first half of the outputs are gates, the second what they gate
  Gate gate = Gate::silu;
  LinearTiling tiling = {};
};

namespace hopper {

/// y = x W^T + b for at most 128 rows of x, on Hopper's matrix and copy engines; with `gated`
/// y = g s rest of gates g (gate.h). Bound by reading W, which every block begins before the kernel
/// ahead of it in the stream has ended: no work still on the stream may write W. Elsewhere than on
/// Hopper cuBLASLt does these products.
/// numerics f32 accumulation in an order that `in` and tiling.parts fix: the same bits on every
///          run, and for a row independent of the other rows and their number
/// cost     reads W once, and x, which the L2 cache is to hold, once a tile
/// errors   kind device where the driver cannot describe the operands to the copy engine; call only
///          what tiled_linear_fits
void tiled_linear_cuda(const TiledLinearParams&, Stream);

/// Whether it can run: sizes in eights, and a tiling whose blocks fit a multiprocessor, and the
/// parts of a tile a cluster and the columns there are.
bool tiled_linear_fits(const TiledLinearParams&);

}  // namespace hopper

}  // namespace tandem
