#pragma once
// Contract of dequantize. No STL: included by sources compiled with per-ISA flags.
#include "base/types.h"

namespace tandem {

struct DequantizeParams {
  void* out;          // [rows, width] f32 or bf16
  const uint8_t* in;  // rows in the form of base/weight_format.h, from a group or block on
  int64_t row_bytes;  // from a row to the next
  int width;          // weights of a row, or of a part of it
  int group;          // weights that share a scale
  Code code;          // i4, i5, i8 or fp8; with two levels i4, i5 or i6
  ScaleType scale;    // f16, bf16, f32 or two_level
  Zero zero;
  DType to;
};

/// Turns rows of codes into numbers, as base/types.h defines Zero. Work items are rows.
/// numerics each product and sum is rounded once to f32, then to nearest even for bf16. So is the
///          scale of two levels, the product of its factors. Every ISA gives the same bits.
/// errors   none (preconditions checked by ops)
using DequantizeFn = void(const DequantizeParams&, Range rows);
DequantizeFn dequantize_ref, dequantize_scalar, dequantize_avx2, dequantize_avx512;

}  // namespace tandem
