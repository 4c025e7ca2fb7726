#pragma once
#include "kernels/linear/tiled_linear.h"

namespace tandem::hopper {

/// y = x W^T + b for at most 128 rows of x, on Hopper's matrix and copy engines; with swiglu
/// y = silu(gates) * rest. Bound by reading W, which every block begins before the kernel ahead of
/// it in the stream has ended: no work still on the stream may write W. Elsewhere than on Hopper
/// cuBLASLt does these products.
/// numerics f32 accumulation in an order that `in` and tiling.parts fix: the same bits on every
///          run, and for a row whatever the other rows and their number
/// cost     reads W once, and x, which the L2 cache is to hold, once a tile
/// errors   kind device where the driver cannot describe the operands to the copy engine; call only
///          what tiled_linear_fits
void tiled_linear_cuda(const TiledLinearParams&, Stream);

/// Whether it can run: sizes in eights, and a tiling whose blocks fit a multiprocessor, and the
/// parts of a tile a cluster and the columns there are.
bool tiled_linear_fits(const TiledLinearParams&);

}  // namespace tandem::hopper
