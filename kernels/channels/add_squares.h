#pragma once
// Contracts of square_scales and add_squares. No STL: included by sources compiled with per-ISA
// flags.
#include "base/types.h"

namespace tandem {

/// Sums that rows of each sequence's slot have added to, channel by channel.
struct ChannelSums {
  float* sums = nullptr;  // of slot s from s * slot_stride on, [n_channels]
  float* rows = nullptr;  // rows that were added, of slot s at s * rows_stride
  int64_t slot_stride = 0, rows_stride = 0;
};

struct SquareScalesParams {
  float* scale;   // out [n_rows]
  const void* x;  // row r from r * row_stride on, [n_channels]
  int64_t row_stride;
  int n_rows, n_channels;
  DType x_type;       // f32 or bf16
  bool sums = false;  // the sums themselves: others are to be added
};

/// scale[r] = 1 / the sum of row r's squares; 0 where that is below the least normal number.
/// numerics f32 sums in a fixed order: the same bits on every run, next to any other rows
/// cost     reads x once
/// errors   none (preconditions checked by ops)
using SquareScalesFn = void(const SquareScalesParams&, Range rows);
SquareScalesFn square_scales_ref, square_scales_scalar, square_scales_avx2, square_scales_avx512;

/// The same on a GPU, all rows, with pointers into device memory: a block a row.
void square_scales_cuda(const SquareScalesParams&, Stream);

struct AddSquaresParams {
  ChannelSums to;
  const void* x;       // row r from r * row_stride on, [n_channels]
  const float* scale;  // [n_rows] of square_scales from row first_row on; null: all 1
  int64_t row_stride;
  const int32_t* slot;       // [n_seqs]
  const int32_t* row_begin;  // [n_seqs + 1] of the step's rows; those of a slot are its tokens
  /// The rows [first_row, last_row) of the step are added; calls for the others come before and
  /// after, in this order.
  int first_row, last_row;
  int n_seqs, n_channels;
  float blend;        // 0: sums grow, and rows with them
  DType x_type;       // f32 or bf16
  bool sums = false;  // scale has sums of squares, as square_scales gives them
};

/// sums[j] += x[r, j]^2 scale[r], row after row, rows += their number. With a blend b, and n rows
/// of a sequence in the step, first sums *= 1 - b and then x^2 scale b rows / n is added, and rows
/// stay as many: the mean of the step's rows blends in. Sequences without rows add nothing.
/// numerics f32, one rounding an addition (two on scalar), in the order of rows: how they are
///          divided into steps and calls shows in no bit where b = 0, nor how channels are divided
/// cost     reads x once
/// errors   none (preconditions checked by ops)
using AddSquaresFn = void(const AddSquaresParams&, Range channels);
AddSquaresFn add_squares_ref, add_squares_scalar, add_squares_avx2, add_squares_avx512;

/// The same on a GPU, all channels, with pointers into device memory. Blocks bring tiles of rows
/// into shared memory, where a thread a channel adds them in order.
void add_squares_cuda(const AddSquaresParams&, Stream);

}  // namespace tandem
