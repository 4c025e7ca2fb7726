#include "ops/adapters.h"

#include "base/check.h"
#include "ops/operation.h"

namespace tandem::ops {
namespace {

/// Groups that blocks of work on the CPU are counted for.
int n_groups(const RowGroups& groups, Stream stream) {
  return stream.handle == nullptr ? *groups.n : groups.most;
}

void check_types(const char* what, const Tensor& y, const Tensor& x) {
  TANDEM_CHECK(y.rows() == x.rows() && (y.dtype() == DType::f32 || y.dtype() == x.dtype()),
               "{}: output {} [{}, {}] does not fit input {} [{}, {}]", what, dtype_name(y.dtype()),
               y.rows(), y.row_size(), dtype_name(x.dtype()), x.rows(), x.row_size());
}

}  // namespace

RowGroups group_rows(const GroupArrays& to, const int32_t* of_slot, int n_adapters, int max_rows,
                     const StepArrays& step, Stream stream) {
  const int most = most_groups(step.n_rows, n_adapters);
  TANDEM_OPERATION(group_rows)
      .run({.adapter = to.adapter,
            .rows = to.rows,
            .n = to.n,
            .of_row = to.of_row,
            .of_slot = of_slot,
            .slot = step.slot,
            .row_begin = step.row_begin,
            .n_seqs = step.n_seqs,
            .n_rows = step.n_rows,
            .n_adapters = n_adapters,
            .most = most,
            .max_rows = max_rows},
           1, 1, stream);
  return {.adapter = to.adapter, .rows = to.rows, .n = to.n, .most = most};
}

void grouped_dots(const Tensor& y, const Tensor& x, const AdapterPart* parts, int part_stride,
                  int most, const RowGroups& groups, Accumulate accumulate, Stream stream) {
  check_types("grouped_dots", y, x);
  if (most == 0 || groups.most == 0) return;
  const GroupedDotsParams p{.y = y.raw(),
                            .x = x.raw(),
                            .parts = parts,
                            .groups = groups,
                            .y_stride = y.row_size(),
                            .in = static_cast<int>(x.row_size()),
                            .part_stride = part_stride,
                            .most = most,
                            .type = x.dtype(),
                            .y_type = y.dtype(),
                            .add = accumulate == Accumulate::yes};
  const int blocks = (most + kDotParts - 1) / kDotParts;
  TANDEM_OPERATION(grouped_dots)
      .run(p, n_groups(groups, stream) * blocks,
           kDotParts * p.in * static_cast<int64_t>(dtype_bytes(p.type)), stream);
}

void grouped_sums(const Tensor& y, const Tensor& x, const AdapterPart* parts, int part_stride,
                  int most, std::span<const GroupedTarget> targets, const RowGroups& groups,
                  Stream stream) {
  check_types("grouped_sums", y, x);
  TANDEM_CHECK(targets.size() <= kGroupedTargets, "grouped_sums: {} targets are too many",
               targets.size());
  if (targets.empty() || most == 0 || groups.most == 0) return;
  GroupedSumsParams p{.y = y.raw(),
                      .x = x.raw(),
                      .parts = parts,
                      .groups = groups,
                      .y_stride = y.row_size(),
                      .x_stride = x.row_size(),
                      .part_stride = part_stride,
                      .most = most,
                      .n_targets = static_cast<int>(targets.size()),
                      .targets = {},
                      .type = x.dtype(),
                      .y_type = y.dtype()};
  std::ranges::copy(targets, p.targets);
  TANDEM_OPERATION(grouped_sums)
      .run(p, n_groups(groups, stream) * sum_blocks(p),
           most * kSumColumns * static_cast<int64_t>(dtype_bytes(p.type)), stream);
}

void add_columns(const Tensor& y, const Tensor& in, const int32_t* index, Stream stream) {
  TANDEM_CHECK(y.rows() == in.rows() && in.dtype() == DType::f32 && in.row_size() <= y.row_size(),
               "add_columns: input [{}, {}] does not fit output [{}, {}]", in.rows(), in.row_size(),
               y.rows(), y.row_size());
  TANDEM_OPERATION(add_columns)
      .run({.y = y.raw(),
            .in = in.as<float>(),
            .index = index,
            .stride = y.row_size(),
            .n_rows = static_cast<int>(y.rows()),
            .n = static_cast<int>(in.row_size()),
            .type = y.dtype()},
           static_cast<int>(y.rows()), in.row_size() * 8, stream);
}

SliceWrite slice_of(const PackedWeights& w, bool columns, const void* values, const int32_t* index,
                    int n) {
  TANDEM_CHECK(w.device().kind == Device::Kind::cuda, "weights [{}, {}] are not on a GPU", w.out(),
               w.in());
  SliceWrite s{.weights = const_cast<void*>(w.input_rows()),
               .values = values,
               .index = index,
               .stride = w.out(),
               .n = n,
               .width = static_cast<int32_t>(w.out()),
               .columns = false};
  if (w.input_rows() != nullptr) {
    TANDEM_CHECK(columns, "weights [{}, {}] are stored by input: writing rows is not supported",
                 w.out(), w.in());
    return s;
  }
  s.weights = w.device_rows();
  s.stride = w.in();
  s.columns = columns;
  if (!columns) s.width = static_cast<int32_t>(w.in());
  return s;
}

void write_slices(const SliceWrite* slices, int n, DType type, Stream stream) {
  launch(TANDEM_KERNEL(write_slices),
         {.slices = slices, .n = n, .number_bytes = static_cast<int>(dtype_bytes(type))}, stream);
}

void merge_low_rank(const MergeLowRank& what, Stream stream) {
  PackedWeights& w = what.weights;
  const bool by_input = w.input_rows() != nullptr;
  TANDEM_CHECK(!by_input || (what.first == 0 && what.rows == w.out()),
               "weights stored by input: merging some of the rows is not supported");
  void* const all = by_input ? const_cast<void*>(w.input_rows()) : w.device_rows();
  const size_t at = static_cast<size_t>(what.first) * w.row_bytes();
  launch(TANDEM_KERNEL(merge_low_rank),
         {.weights = static_cast<std::byte*>(all) + at,
          .base = static_cast<const std::byte*>(what.base) + at,
          .a = what.a,
          .b = what.b,
          .scale = what.scale,
          .rows = what.rows,
          .in = w.in(),
          .rank = what.rank,
          .by_input = by_input,
          .type = w.dtype()},
         stream);
}

}  // namespace tandem::ops
