#pragma once
#include "kernels/linear/skinny_linear.h"

namespace tandem {

/// y = x W^T + b for at most 16 rows of x; with norm_weight x is first normalised (rms_norm.h),
/// with swiglu y = silu(gates) * rest. Bound by reading W, which every block begins before the
/// kernel ahead of it in the stream has ended: neither W nor norm_weight may be written by work
/// still on the stream.
/// numerics f32 accumulation on tensor cores, in an order that `in` alone fixes: the same bits on
///          every run, and for a row whatever the other rows and their number
/// cost     reads W once, and x once an SM
/// errors   none; call only what skinny_linear_fits
void skinny_linear_cuda(const SkinnyLinearParams&, Stream);

/// Whether x and that many loads in flight fit an SM's shared memory. `in` must be a multiple of 8.
bool skinny_linear_fits(int rows, int in, int stages);

}  // namespace tandem
