#pragma once
#include <cstdint>

#include "base/weight_format.h"

namespace tandem::ops {

/// True for formats that quantize writes: i4 or i8 codes with f16 scales and no or an integer zero,
/// or fp8 codes with f32 scales.
bool is_quantized_to(const WeightFormat& format);

/// Turns rows of numbers into codes (kernels/quant/quantize.h), on all threads.
/// shapes   out [n_rows, row_bytes(to, in)] bytes; rows [n_rows, in], finite
/// search   tries 17 multiples of each scale for the least squared error, in 5 times the time. Has
///          no effect on fp8, where it would make the error 3 % less
void quantize(void* out, const WeightFormat& to, const float* rows, int64_t n_rows, int64_t in,
              bool search);

/// Turns rows of codes into f32 or bf16 numbers (kernels/quant/dequantize.h), on all threads.
/// shapes   out [n_rows, in]; rows [n_rows, row_bytes(from, in)] bytes, any alignment
void dequantize(void* out, DType to, const void* rows, const WeightFormat& from, int64_t n_rows,
                int64_t in);
/// Turns inputs [first, first + n) of each row into numbers. Groups of a row begin there, or the
/// row is one group and `first` is even.
/// shapes   out [n_rows, n]
void dequantize_columns(void* out, DType to, const void* rows, const WeightFormat& from,
                        int64_t n_rows, int64_t in, int64_t first, int64_t n);

}  // namespace tandem::ops
