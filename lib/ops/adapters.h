#pragma once
#include <cstdint>

#include "kernels/adapter/grouped_products.h"
#include "kernels/adapter/write_slices.h"
#include "ops/linear.h"
#include "ops/step_arrays.h"

/// Products of several adapters in one batch, and changes of weights by one. Pointers and tensors
/// of a call are on one device; on a GPU the work goes to the stream, where graphs may record it.
namespace tandem::ops {

using tandem::AdapterPart;
using tandem::GroupedTarget;
using tandem::kGroupRows;
using tandem::RowGroups;

/// Where groups are written. Sizes are those of RowGroups; of_row [rows of a step].
struct GroupArrays {
  int32_t *adapter = nullptr, *rows = nullptr, *n = nullptr, *of_row = nullptr;
};
/// Groups a step's rows by the adapters of their sequences, those of sequences with at most
/// max_rows.
/// of_slot  [slots] each sequence's, negative: none
RowGroups group_rows(const GroupArrays& to, const int32_t* of_slot, int n_adapters, int max_rows,
                     const StepArrays& step, Stream stream = {});

/// y[r, index[j]] (+)= x[r] . values[j] over the part of each row's adapter, that of adapter a at
/// parts + a * part_stride.
/// shapes   y [rows, n], x [rows, in] of the values' type; y of it or f32
/// numerics kernels/adapter/grouped_products.h
/// most     n of a part at most
void grouped_dots(const Tensor& y, const Tensor& x, const AdapterPart* parts, int part_stride,
                  int most, const RowGroups& groups, Accumulate accumulate, Stream stream = {});
/// y[r, target] += x[r, index] values over the parts of each row's adapter.
/// shapes   as grouped_dots; values of a target's part [n, width]
/// most     n of a part at most
void grouped_sums(const Tensor& y, const Tensor& x, const AdapterPart* parts, int part_stride,
                  int most, std::span<const GroupedTarget> targets, const RowGroups& groups,
                  Stream stream = {});

/// y[r, index[c]] += in[r, c].
/// shapes   y [rows, n] f32 or bf16, in [rows, m] f32; index [m] distinct
void add_columns(const Tensor& y, const Tensor& in, const int32_t* index, Stream stream = {});

/// On a GPU: where columns, or rows, of weights are written, from values of their dtype.
/// shapes   rows: values [n, in]; columns: [n, out] where the weights are by input, else [out, n]
SliceWrite slice_of(const PackedWeights& w, bool columns, const void* values, const int32_t* index,
                    int n);
/// Writes all of them. slices [n] in device memory.
void write_slices(const SliceWrite* slices, int n, DType type, Stream stream);

/// On a GPU: rows [first, first + rows) of weights = scale (base + b a), in f32 and rounded once.
struct MergeLowRank {
  PackedWeights& weights;
  const void* base = nullptr;    // the whole matrix, as the weights lie
  int64_t first = 0, rows = 0;   // all rows of weights by input
  const float* a = nullptr;      // [rank, in]
  const float* b = nullptr;      // [rows, rank], times gamma
  const float* scale = nullptr;  // [rows] or null
  int rank = 0;
};
void merge_low_rank(const MergeLowRank& what, Stream stream);

}  // namespace tandem::ops
