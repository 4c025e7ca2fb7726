#include "kernels/grouped_case.h"

#include <cstring>

using namespace tandem;
using namespace tandem::test;

namespace {

void check_groups(GroupedCase& c, const RowGroups& groups) {
  std::vector<int> seen(static_cast<size_t>(c.shape.rows));
  int before = -1, last_row = -1;
  REQUIRE(*groups.n <= groups.most);
  for (int g = 0; g < *groups.n; ++g) {
    const int32_t adapter = groups.adapter[g];
    REQUIRE(adapter >= before);
    if (adapter != before) last_row = -1;
    before = adapter;
    bool ended = false;
    for (int i = 0; i < kGroupRows; ++i) {
      const int32_t r = groups.rows[g * kGroupRows + i];
      if (r < 0) {
        ended = true;
        REQUIRE(i > 0);
        continue;
      }
      REQUIRE(!ended);
      REQUIRE(r > last_row);
      last_row = r;
      REQUIRE(c.of_row[static_cast<size_t>(r)] == adapter);
      ++seen[static_cast<size_t>(r)];
    }
  }
  for (size_t r = 0; r < seen.size(); ++r) REQUIRE(seen[r] == (c.of_row[r] >= 0 ? 1 : 0));
}

ActBuffer copy_of(ActBuffer& b) {
  ActBuffer to(b.type, b.size());
  for (size_t i = 0; i < b.size(); ++i) to.set(i, b.get(i));
  return to;
}

bool same_bits(ActBuffer& a, ActBuffer& b, size_t row, size_t width) {
  const size_t bytes = width * dtype_bytes(a.type);
  return std::memcmp(static_cast<char*>(a.data()) + row * bytes,
                     static_cast<char*>(b.data()) + row * bytes, bytes) == 0;
}

void check(GroupedCase& c, Isa isa) {
  const RowGroups groups = c.group();
  check_groups(c, groups);
  const CpuTable& table = cpu_table(isa);
  const auto width = static_cast<size_t>(c.shape.out);
  for (const bool add : {true, false}) {
    ActBuffer want = copy_of(c.before), got = copy_of(c.before);
    const int blocks = c.dot_blocks();
    grouped_dots_ref(c.dots(want, groups, add), {0, blocks});
    table.grouped_dots(c.dots(got, groups, add), {0, blocks / 3});
    table.grouped_dots(c.dots(got, groups, add), {blocks / 3, blocks});
    REQUIRE_CLOSE(got, want, [&](size_t i) { return c.tolerance(i, want.get(i), false, add); });
    for (size_t r = 0; r < static_cast<size_t>(c.shape.rows); ++r) {  // as if it were alone
      const std::vector<int32_t> all = c.of_row;
      std::ranges::fill(c.of_row, -1);
      c.of_row[r] = all[r];
      ActBuffer alone = copy_of(c.before);
      const RowGroups one = c.group();
      table.grouped_dots(c.dots(alone, one, add), {0, c.dot_blocks()});
      REQUIRE(same_bits(alone, got, r, width));
      c.of_row = all;
    }
    (void)c.group();
  }
  ActBuffer want = copy_of(c.before), got = copy_of(c.before);
  const GroupedSumsParams p = c.sums(want, groups);
  const int blocks = c.n_groups * sum_blocks(p);
  grouped_sums_ref(p, {0, blocks});
  table.grouped_sums(c.sums(got, groups), {0, blocks / 2});
  table.grouped_sums(c.sums(got, groups), {blocks / 2, blocks});
  REQUIRE_CLOSE(got, want, [&](size_t i) { return c.tolerance(i, want.get(i), true); });
  for (size_t r = 0; r < static_cast<size_t>(c.shape.rows); ++r) {
    const std::vector<int32_t> all = c.of_row;
    std::ranges::fill(c.of_row, -1);
    c.of_row[r] = all[r];
    ActBuffer alone = copy_of(c.before);
    const RowGroups one = c.group();
    table.grouped_sums(c.sums(alone, one), {0, c.n_groups * sum_blocks(p)});
    REQUIRE(same_bits(alone, got, r, width));
    c.of_row = all;
  }
}

}  // namespace

TEST_SUITE("kernels/grouped_products") {
  TEST_CASE("several adapters on every ISA: as the reference, each row as if alone") {
    uint64_t seed = 0;
    const GroupedShape shapes[] = {{1, 1, 64, 96, {5}},
                                   {3, 2, 37, 51, {1, 30}},
                                   {8, 8, 128, 130, {3, 16, 17, 1, 33, 8, 20, 64}},
                                   {40, 2, 61, 29, {7, 29}},
                                   {19, 3, 256, 300, {0, 40, 100}}};
    for (const Isa isa : usable_isas())
      for (const GroupedShape& shape : shapes)
        for (const auto& [type, y_type] :
             {std::pair(DType::f32, DType::f32), std::pair(DType::bf16, DType::bf16),
              std::pair(DType::bf16, DType::f32)}) {
          CAPTURE(static_cast<int>(isa));
          CAPTURE(dtype_name(type));
          CAPTURE(shape.rows);
          GroupedCase c(shape, type, y_type, ++seed);
          check(c, isa);
        }
  }

  TEST_CASE("rows beyond the last sequence, and sequences without an adapter, are in no group") {
    const int32_t of_slot[] = {1, -1, 0}, slot[] = {2, 0, 1}, begin[] = {0, 20, 21, 22};
    int32_t adapter[4], rows[4 * kGroupRows], n = -1, of_row[30];
    const auto group = [&](int max_rows) {
      group_rows_cpu({.adapter = adapter,
                      .rows = rows,
                      .n = &n,
                      .of_row = of_row,
                      .of_slot = of_slot,
                      .slot = slot,
                      .row_begin = begin,
                      .n_seqs = 3,
                      .n_rows = 30,
                      .n_adapters = 2,
                      .most = most_groups(30, 2),
                      .max_rows = max_rows},
                     {0, 1});
    };
    group(20);
    REQUIRE(most_groups(30, 2) <= 4);
    REQUIRE(n == 3);
    CHECK(adapter[0] == 0);
    CHECK(adapter[1] == 0);
    CHECK(adapter[2] == 1);
    CHECK(rows[15] == 15);
    CHECK(rows[kGroupRows] == 16);
    CHECK(rows[kGroupRows + 3] == 19);
    CHECK(rows[kGroupRows + 4] == -1);
    CHECK(rows[2 * kGroupRows] == 20);
    CHECK(rows[2 * kGroupRows + 1] == -1);
    // Sequences of too many rows are left out.
    group(19);
    REQUIRE(n == 1);
    CHECK(adapter[0] == 1);
    CHECK(rows[0] == 20);
  }

  TEST_CASE("targets have parts of their own") {
    // One row, one adapter: the inner activations 2, 3 reach columns 1 and 2 by part 1, and column
    // 4 by part 0.
    const float first[] = {10}, second[] = {1, 2, 3, 4}, x[] = {2, 3, 5};
    const int32_t of_first[] = {2}, of_second[] = {0, 1}, adapter = 0, n = 1;
    int32_t rows[kGroupRows];
    std::fill(std::begin(rows), std::end(rows), -1);
    rows[0] = 0;
    const AdapterPart parts[] = {{first, of_first, 1}, {second, of_second, 2}};
    for (const Isa isa : usable_isas()) {
      float y[] = {100, 0, 1, 0, 0};
      const GroupedSumsParams p{.y = y,
                                .x = x,
                                .parts = parts,
                                .groups = {&adapter, rows, &n, 1},
                                .y_stride = 5,
                                .x_stride = 3,
                                .part_stride = 2,
                                .most = 2,
                                .n_targets = 2,
                                .targets = {{1, 2, 1}, {4, 1, 0}},
                                .type = DType::f32,
                                .y_type = DType::f32};
      cpu_table(isa).grouped_sums(p, {0, sum_blocks(p)});
      CHECK(y[0] == 100);
      CHECK(y[1] == 2 * 1 + 3 * 3);
      CHECK(y[2] == 1 + 2 * 2 + 3 * 4);
      CHECK(y[3] == 0);
      CHECK(y[4] == 50);
    }
  }
}
