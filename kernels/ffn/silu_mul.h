#pragma once
// Contract of silu_mul. No STL: included by sources compiled with per-ISA flags.
#include "base/types.h"

namespace tandem {

struct SiluMulParams {
  void* out;            // [n_rows, F] act
  const void* gate_up;  // [n_rows, 2 F] act, the gates of a row first
  int n_rows, ffn_dim;  // F
  DType act;            // bf16 or f32
};

/// The gate of a gated FFN: out = gate / (1 + exp(-gate)) * up.
/// layout   rows contiguous; out must not alias gate_up
/// numerics f32, one rounding to act; |out - ref| <= (eps_act + 6 eps_f32) |ref|; +-0 where
///          exp(-gate) overflows (gate < -88.7: the true value is below 1e-36 |up|)
/// cost     reads n_rows * 2 F act, writes n_rows * F act
/// errors   none (preconditions checked by ops)
using SiluMulFn = void(const SiluMulParams&, Range rows);
SiluMulFn silu_mul_ref, silu_mul_scalar, silu_mul_avx2, silu_mul_avx512, silu_mul_avx512_bf16;

/// The same on a GPU, with pointers into device memory.
void silu_mul_cuda(const SiluMulParams&, Stream);

}  // namespace tandem
