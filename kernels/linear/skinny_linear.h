#pragma once
// Contract of skinny_linear, a dense layer on few rows. No STL.
#include "base/types.h"
#include "kernels/ffn/gate.h"

namespace tandem {

/// Rows of x at most.
inline constexpr int kSkinnyRows = 16;

struct SkinnyLinearParams {
  void* y;                   // [rows, out] of y_type; with `gated` [rows, out / 2]
  const void* x;             // [rows, in] bf16; with norm_weight f32
  const bf16* w;             // [out, in], 16-byte aligned like x
  const float* bias;         // [out], or null
  const float* norm_weight;  // [in], or null: x is taken as it is
  float norm_eps;
  int rows, out, in;
  DType y_type;     // bf16 or f32
  bool accumulate;  // y += instead of y =; f32
  bool gated;       // the first half of the outputs are gates, the second what they gate
  Gate gate;
  int stages;  // loads in flight: of 16 KiB of weights each, per block; changes no result
};

/// The shape that decides whether skinny_linear can run a product.
struct SkinnyLinearShape {
  int rows, in;
  int stages;  // loads in flight
  bool norm;   // x is normalised first
};

/// y = x W^T + b for at most 16 rows of x; with norm_weight x is first normalised (rms_norm.h),
/// with `gated` y = g s rest of gates g (gate.h). Bound by reading W, which every block may begin
/// before the kernel ahead of it in the stream has ended: neither W nor norm_weight may be written
/// by work still on the stream.
/// numerics f32 accumulation on tensor cores, in an order that `in` alone fixes: the same bits on
///          every run and in both bodies, and for a row with any other rows, however many
/// cost     reads W once, and x once an SM
/// errors   none; call only where skinny_linear_fits: `in` is a multiple of 8, and a block finds
///          the shared memory that it needs
namespace portable {
/// x is read where it lies, unless it is normalised: it then stands in shared memory.
void skinny_linear_cuda(const SkinnyLinearParams&, Stream);
bool skinny_linear_fits(const SkinnyLinearShape&);
}  // namespace portable

namespace hopper {
/// x stands in shared memory, whole.
void skinny_linear_cuda(const SkinnyLinearParams&, Stream);
bool skinny_linear_fits(const SkinnyLinearShape&);
}  // namespace hopper

}  // namespace tandem
