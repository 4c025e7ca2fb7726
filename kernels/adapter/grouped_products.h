#pragma once
// Contracts of products of several adapters in one batch: rows of a step are grouped by their
// adapter on the device, so that a graph serves any mixture. No STL: included by sources compiled
// with per-ISA flags.
#include "base/types.h"

namespace tandem {

/// Rows of a group at most.
inline constexpr int kGroupRows = 16;

/// Rows of a step by adapter: groups of one adapter's rows, ascending.
struct RowGroups {
  const int32_t* adapter;  // [most] of each group
  const int32_t* rows;     // [most, kGroupRows]; negative after the last
  const int32_t* n;        // [1] groups
  int most;                // n at most
  // On a GPU: since they were written, a product that is not settled came before on the stream.
  // This one may read them, and weights, before the work directly ahead has ended.
  bool settled = false;
};

struct GroupRowsParams {
  int32_t *adapter, *rows, *n;  // as RowGroups'
  int32_t* of_row;              // [n_rows] scratch
  const int32_t* of_slot;       // [slots] the adapter of each sequence, negative: none
  const int32_t* slot;          // [n_seqs]
  const int32_t* row_begin;     // [n_seqs + 1]; rows beyond the last belong to no sequence
  int n_seqs, n_rows, n_adapters, most;
  int max_rows;  // of a sequence: those that have more are in no group
};

/// Groups that n rows fill at most.
inline int most_groups(int n_rows, int n_adapters) {
  const int all = n_adapters + n_rows / kGroupRows;
  return n_rows < all ? n_rows : all;
}

/// Groups the rows of a step that have an adapter: adapters ascending, rows of each in their order.
/// cost     a few microseconds, once a step: one portable body
/// errors   none: `most` is at least most_groups
using GroupRowsFn = void(const GroupRowsParams&, Range);
GroupRowsFn group_rows_cpu;
void group_rows_cuda(const GroupRowsParams&, Stream);

/// What an adapter has of a matrix. None of n 0.
struct AdapterPart {
  const void* values;    // [n, width] of type
  const int32_t* index;  // [n] distinct
  int32_t n;
};

struct GroupedDotsParams {
  void* y;                   // [rows, y_stride] of y_type
  const void* x;             // [rows, in] of type
  const AdapterPart* parts;  // that of adapter a at a * part_stride
  RowGroups groups;
  int64_t y_stride;
  int in, part_stride;
  int most;            // n of a part at most
  DType type, y_type;  // f32 or bf16
  bool add;            // else y is set
};

/// Parts in a block of work of the CPU.
inline constexpr int kDotParts = 16;

/// y[r, index[j]] (+)= x[r] . values[j] over the part of each row's adapter: rows of a matrix that
/// an adapter changes (S2FT's output slices), or LoRA's first factor.
/// numerics f32 accumulation in an order that `in` alone fixes, and on a GPU `most`; the bits of a
///          row depend on no other row and no group. |y - ref| <= (in + 3) eps_f32 of the sums of
///          magnitudes, and one rounding to y_type
/// cost     reads each value once a group
/// errors   none (preconditions checked by ops)
/// blocks   group g's block b is g * ceil(most / kDotParts) + b
using GroupedDotsFn = void(const GroupedDotsParams&, Range blocks);
GroupedDotsFn grouped_dots_ref, grouped_dots_scalar, grouped_dots_avx2, grouped_dots_avx512,
    grouped_dots_avx512_bf16;
/// The same on a GPU, with pointers into device memory. No work still on the stream may write
/// values or indices. A kernel whose groups are not settled waits before it lets others begin.
/// cost     of bf16 where `in` is a multiple of 8 and rows are 16-byte aligned on tensor cores;
///          else plain
void grouped_dots_cuda(const GroupedDotsParams&, Stream);

/// Columns of y that one of an adapter's parts adds to.
struct GroupedTarget {
  int32_t first, width;
  int32_t part;  // which of the adapter's
};
inline constexpr int kGroupedTargets = 3;

struct GroupedSumsParams {
  void* y;                   // [rows, y_stride] of y_type
  const void* x;             // [rows, x_stride] of type
  const AdapterPart* parts;  // part i of adapter a at a * part_stride + i
  RowGroups groups;
  int64_t y_stride, x_stride;
  int part_stride;
  int most;  // n of a part at most
  int n_targets;
  GroupedTarget targets[kGroupedTargets];
  DType type, y_type;  // f32 or bf16
};

/// Columns of y in a block of work of the CPU, and of a target the last is shorter.
inline constexpr int kSumColumns = 128;
/// Blocks of a group's targets.
inline int sum_blocks(const GroupedSumsParams& p) {
  int n = 0;
  for (int t = 0; t < p.n_targets; ++t) n += (p.targets[t].width + kSumColumns - 1) / kSumColumns;
  return n;
}

/// y[r, first + c] += sum_j x[r, index[j]] values[j, c] over the parts of each row's adapter:
/// columns of a matrix that an adapter changes (S2FT's input slices), or LoRA's second factor.
/// numerics f32 accumulation in an order that n alone fixes, and on a GPU `most`; the bits of a
///          row depend on no other row and no group. |y - ref| <= (n + 3) eps_f32 of the sums of
///          magnitudes, y before among them, and one rounding to y_type
/// cost     reads each value once a group
/// errors   none (preconditions checked by ops)
/// blocks   group g's block b is g * sum_blocks + b
using GroupedSumsFn = void(const GroupedSumsParams&, Range blocks);
GroupedSumsFn grouped_sums_ref, grouped_sums_scalar, grouped_sums_avx2, grouped_sums_avx512,
    grouped_sums_avx512_bf16;
/// The same on a GPU, as grouped_dots_cuda.
/// cost     of bf16 where targets are multiples of 8 and values 16-byte aligned on tensor cores;
///          else plain
void grouped_sums_cuda(const GroupedSumsParams&, Stream);

}  // namespace tandem
