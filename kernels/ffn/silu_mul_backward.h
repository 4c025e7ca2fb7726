#pragma once
// Contract of silu_mul_backward. No STL: included by sources compiled with per-ISA flags.
#include "base/types.h"

namespace tandem {

struct SiluMulBackwardParams {
  void* gate_up;           // [n_rows, 2 F] act, the gates of a row first; gets their gradients
  const void* da;          // [n_rows, F] act, gradient of a = silu(gate) * up; null: gate_up stays
  void* a_columns;         // [n_rows, n_columns] act, gets columns of a; or null
  const int32_t* columns;  // [n_columns], 0 .. F - 1; null: the first n_columns
  int n_rows, ffn_dim;     // F
  int n_columns;
  DType act;  // bf16 or f32
};

/// The backward pass of silu_mul, in place: with s = 1 / (1 + exp(-gate)), gate becomes
/// da * up * s * (1 + gate * (1 - s)) and up becomes da * gate * s. Before that, listed columns of
/// a are computed again, for the gradient of the weights that they met.
/// layout   rows contiguous; nothing aliases
/// numerics f32, one rounding to act; columns of a have the bits of silu_mul; |out - ref| <=
///          (eps_act + 12 eps_f32) |ref| + 12 eps_f32 |da up s|; saturated gates give 0 and da up
/// cost     reads gate_up and da, writes gate_up
/// errors   none (preconditions checked by ops)
using SiluMulBackwardFn = void(const SiluMulBackwardParams&, Range rows);
SiluMulBackwardFn silu_mul_backward_ref, silu_mul_backward_scalar, silu_mul_backward_avx2,
    silu_mul_backward_avx512, silu_mul_backward_avx512_bf16;

/// The same on a GPU, all rows, with pointers into device memory.
void silu_mul_backward_cuda(const SiluMulBackwardParams&, Stream);

}  // namespace tandem
