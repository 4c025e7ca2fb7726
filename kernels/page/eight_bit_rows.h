#pragma once
// Rows of keys or values in eight bits: contract. No STL: included by sources compiled with per-ISA
// flags.
#include "base/types.h"

namespace tandem {

struct EightBitRowsParams {
  int8_t* rows;   // [n_rows, d]
  float* scales;  // of row i at scales[i * scale_stride]
  void* wide;     // [n_rows, d] of dtype
  DType dtype;    // f32 or bf16
  int n_rows, d, scale_stride;
};

/// A row becomes whole numbers from -127 to 127 and a scale, such that number * scale is the
/// element.
/// numerics scale = max |x| / 127, cut to 16 significant bits; an element is off by .504 scales at
///          most. Rows of only smaller numbers than 2^-100 become 0; one with a number that is not
///          finite gets a scale that is NaN. The same bits on every ISA and GPU
/// cost     reads 1 wide row twice (from L1 the second time), writes d + 4 bytes
/// errors   none (preconditions checked by the caller)
using NarrowRowsFn = void(const EightBitRowsParams&, Range rows);
NarrowRowsFn narrow_rows_scalar, narrow_rows_avx2, narrow_rows_avx512;

/// The row that whole numbers and a scale stand for: number * scale, rounded to dtype (in f32
/// exact). Made narrow again it is the same bytes: rows of bf16 that were bf16 before keep their
/// largest number, and all f32 products are exact.
using WidenEightBitRowsFn = void(const EightBitRowsParams&, Range rows);
WidenEightBitRowsFn widen_eight_bit_rows_scalar, widen_eight_bit_rows_avx2,
    widen_eight_bit_rows_avx512;

/// The same on a GPU, with pointers into its memory.
void narrow_rows_cuda(const EightBitRowsParams&, Stream);
void widen_eight_bit_rows_cuda(const EightBitRowsParams&, Stream);

}  // namespace tandem
