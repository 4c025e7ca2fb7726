#pragma once
// Contract of dequantize. No STL: included by sources compiled with per-ISA flags.
#include "base/types.h"

namespace tandem {

struct DequantizeParams {
  void* out;          // [rows, width] f32 or bf16
  const uint8_t* in;  // [rows, row_bytes] in the row form of base/weight_format.h
  int64_t row_bytes;  // whole groups
  int width;          // weights of a row
  int group;          // weights that share a scale
  Code code;          // i4, i8 or fp8
  ScaleType scale;    // f16, bf16 or f32
  Zero zero;
  DType to;
};

/// Turns rows of codes into numbers, as base/types.h defines Zero. Work items are rows.
/// numerics each product and sum is rounded once to f32, then to nearest even for bf16. Every ISA
///          gives the same bits.
/// errors   none (preconditions checked by ops)
using DequantizeFn = void(const DequantizeParams&, Range rows);
DequantizeFn dequantize_ref, dequantize_scalar, dequantize_avx2, dequantize_avx512;

}  // namespace tandem
