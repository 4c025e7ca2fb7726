#pragma once
// Contract of gate_mul_backward. No STL: included by sources compiled with per-ISA flags.
#include "base/types.h"
#include "kernels/ffn/gate.h"

namespace tandem {

struct GateMulBackwardParams {
  void* gate_up;           // [n_rows, 2 F] act, the gates of a row first; gets their gradients
  const void* da;          // [n_rows, F] act, gradient of a = g s up (gate.h); null: gate_up stays
  void* a_columns;         // [n_rows, n_columns] act, gets columns of a; or null
  const int32_t* columns;  // [n_columns], 0 .. F - 1; null: the first n_columns
  int n_rows, ffn_dim;     // F
  int n_columns;
  DType act;  // bf16 or f32
  Gate gate;
};

/// The backward pass of gate_mul, in place: g becomes da up s (1 + g z' (1 - s)) and up becomes
/// da g s. Before that, listed columns of a are computed again, for the gradient of the weights
/// that they met.
/// layout   rows contiguous; nothing aliases
/// numerics f32, one rounding to act; columns of a have the bits of gate_mul; |out - ref| <=
///          (eps_act + 12 eps_f32) |ref| + 12 eps_f32 |da up s|, of gelu_tanh with 2 |g| eps_f32
///          |da up| more, of gelu with 40 eps_f32 |da up|, for |g| < 2^43; saturated gates give 0
///          and da up
/// cost     reads gate_up and da, writes gate_up
/// errors   none (preconditions checked by ops)
using GateMulBackwardFn = void(const GateMulBackwardParams&, Range rows);
GateMulBackwardFn gate_mul_backward_ref, gate_mul_backward_scalar, gate_mul_backward_avx2,
    gate_mul_backward_avx512, gate_mul_backward_avx512_bf16;

/// Runs all rows on a GPU, with pointers into device memory.
void gate_mul_backward_cuda(const GateMulBackwardParams&, Stream);

}  // namespace tandem
