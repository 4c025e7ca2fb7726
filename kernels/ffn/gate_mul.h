#pragma once
// Contract of gate_mul. No STL: included by sources compiled with per-ISA flags.
#include "base/types.h"
#include "kernels/ffn/gate.h"

namespace tandem {

struct GateMulParams {
  void* out;            // [n_rows, F] act
  const void* gate_up;  // [n_rows, 2 F] act, the gates of a row first
  int n_rows, ffn_dim;  // F
  DType act;            // bf16 or f32
  Gate gate;
};

/// The gate of a gated FFN: out = g s up (gate.h).
/// layout   rows contiguous; out must not alias gate_up
/// numerics f32, one rounding to act; |out - ref| <= (eps_act + 6 eps_f32) |ref|, of gelu_tanh with
///          2 |z| eps_f32 |ref| more, of gelu with 16 |z| eps_f32 |ref| + 1e-17; +-0 where exp(-z)
///          overflows (z < -88.7: the true value is below 1e-36 |up|)
/// cost     reads n_rows * 2 F act, writes n_rows * F act
/// errors   none (preconditions checked by ops)
using GateMulFn = void(const GateMulParams&, Range rows);
GateMulFn gate_mul_ref, gate_mul_scalar, gate_mul_avx2, gate_mul_avx512, gate_mul_avx512_bf16;

/// The same on a GPU, with pointers into device memory.
void gate_mul_cuda(const GateMulParams&, Stream);

}  // namespace tandem
