#pragma once
// Products of several adapters in one batch, for the tests of both devices.
#include <algorithm>
#include <vector>

#include "kernels/adapter/grouped_products.h"
#include "kernels/variants.h"

namespace tandem::test {

struct GroupedShape {
  int rows, adapters, in, out;
  std::vector<int> n;  // of each adapter's part, at most `in` and `out`
};

/// Numbers of adapters that change different rows and columns of one matrix, and which row has
/// which adapter, if any.
struct GroupedCase {
  GroupedShape shape;
  DType type, y_type;
  ActBuffer x, before;                               // [rows, in], [rows, out]
  std::vector<ActBuffer> row_values, column_values;  // [adapters] of [n, in], and of [n, out]
  std::vector<std::vector<int32_t>> row_index, column_index;
  std::vector<int32_t> of_row;  // adapter, negative: none
  std::vector<AdapterPart> row_parts, column_parts;
  std::vector<int32_t> group_adapter, group_rows_of, scratch;
  int32_t n_groups = 0;

  GroupedCase(GroupedShape s, DType t, DType y, uint64_t seed)
      : shape(std::move(s)),
        type(t),
        y_type(y),
        x(t, size(shape.rows) * size(shape.in)),
        before(y, size(shape.rows) * size(shape.out)) {
    PhiloxStream stream(seed);
    fill(x, stream, 1.0f);
    fill(before, stream, 1.0f);
    for (int a = 0; a < shape.adapters; ++a) {
      const int n = shape.n[size(a)];
      row_index.push_back(some(n, shape.out, stream));
      column_index.push_back(some(n, shape.in, stream));
      fill(row_values.emplace_back(t, size(n) * size(shape.in)), stream, 1.0f);
      fill(column_values.emplace_back(t, size(n) * size(shape.out)), stream, 1.0f);
    }
    for (int r = 0; r < shape.rows; ++r)
      of_row.push_back(
          static_cast<int32_t>(stream.below(static_cast<uint32_t>(shape.adapters) + 1)) - 1);
    for (int a = 0; a < shape.adapters; ++a) {
      const int n = shape.n[size(a)];
      row_parts.push_back({row_values[size(a)].data(), row_index[size(a)].data(), n});
      column_parts.push_back({column_values[size(a)].data(), column_index[size(a)].data(), n});
    }
  }
  static size_t size(int64_t n) { return static_cast<size_t>(n); }
  static std::vector<int32_t> some(int n, int of, PhiloxStream& stream) {
    std::vector<int32_t> all(size(of));
    for (int i = 0; i < of; ++i) all[size(i)] = i;
    for (int i = 0; i < n; ++i)
      std::swap(all[size(i)], all[size(i) + stream.below(static_cast<uint32_t>(of - i))]);
    all.resize(size(n));
    std::ranges::sort(all);
    return all;
  }
  int most() const { return *std::ranges::max_element(shape.n); }

  /// Groups as group_rows makes them, of a sequence a row.
  RowGroups group() {
    const int most = most_groups(shape.rows, shape.adapters);
    group_adapter.assign(size(most), -7);
    group_rows_of.assign(size(most) * kGroupRows, -7);
    scratch.assign(size(shape.rows), 0);
    std::vector<int32_t> slot, begin;
    for (int r = 0; r <= shape.rows; ++r) {
      if (r < shape.rows) slot.push_back(r);
      begin.push_back(r);
    }
    group_rows_cpu({.adapter = group_adapter.data(),
                    .rows = group_rows_of.data(),
                    .n = &n_groups,
                    .of_row = scratch.data(),
                    .of_slot = of_row.data(),
                    .slot = slot.data(),
                    .row_begin = begin.data(),
                    .n_seqs = shape.rows,
                    .n_rows = shape.rows,
                    .n_adapters = shape.adapters,
                    .most = most,
                    .max_rows = 1},
                   {0, 1});
    return {.adapter = group_adapter.data(),
            .rows = group_rows_of.data(),
            .n = &n_groups,
            .most = most};
  }
  GroupedDotsParams dots(ActBuffer& y, const RowGroups& groups, bool add = true) {
    return {.y = y.data(),
            .x = x.data(),
            .parts = row_parts.data(),
            .groups = groups,
            .y_stride = shape.out,
            .in = shape.in,
            .part_stride = 1,
            .most = most(),
            .type = type,
            .y_type = y_type,
            .add = add};
  }
  GroupedSumsParams sums(ActBuffer& y, const RowGroups& groups) {
    return {.y = y.data(),
            .x = x.data(),
            .parts = column_parts.data(),
            .groups = groups,
            .y_stride = shape.out,
            .x_stride = shape.in,
            .part_stride = 1,
            .most = most(),
            .n_targets = 1,
            .targets = {{0, shape.out, 0}},
            .type = type,
            .y_type = y_type};
  }
  int dot_blocks() const { return n_groups * ((most() + kDotParts - 1) / kDotParts); }

  /// As the contracts say.
  double tolerance(size_t at, double want, bool of_columns, bool add = true) {
    const size_t r = at / size(shape.out), c = at % size(shape.out);
    if (of_row[r] < 0) return 0;
    const auto a = size(of_row[r]);
    const std::vector<int32_t>& index = of_columns ? column_index[a] : row_index[a];
    double sum = add ? std::abs(double{before.get(at)}) : 0, terms = shape.in;
    if (of_columns) {
      terms = static_cast<double>(index.size());
      for (size_t j = 0; j < index.size(); ++j)
        sum += std::abs(double{x.get(r * size(shape.in) + size(index[j]))} *
                        column_values[a].get(j * size(shape.out) + c));
    } else {
      const auto it = std::ranges::find(index, static_cast<int32_t>(c));
      if (it == index.end()) return 0;
      const auto j = size(it - index.begin());
      for (size_t k = 0; k < size(shape.in); ++k)
        sum += std::abs(double{x.get(r * size(shape.in) + k)} *
                        row_values[a].get(j * size(shape.in) + k));
    }
    return (terms + 3) * spacing(DType::f32) * sum + spacing(y_type) * std::abs(want) + 1e-37;
  }
};

}  // namespace tandem::test
