// Products of several adapters in one batch, each row with its own, as the S2FT paper measures them
// (arXiv 2412.06289, figure 6c): slices of inputs and of outputs, and low-rank factors of as many
// numbers.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/rng.h"
#include "bench/kernel_data.h"
#include "kernels/adapter/grouped_products.h"
#include "ops/adapters.h"
#include "ops/loading.h"

namespace tandem::bench {
namespace {

/// Parts of one kind, one an adapter, and the groups of as many rows.
struct Adapters {
  OwnedTensor values;  // [adapters, n, width]
  std::vector<int32_t> index;
  std::vector<AdapterPart> parts;
  std::vector<int32_t> adapter, rows;
  int32_t n_groups;

  /// Features `index` of `of`, all neighbours of each other where n is `of`.
  Adapters(DType dtype, int n_adapters, int n, int width, int of, uint32_t id)
      : values(OwnedTensor::random(dtype, {int64_t{n_adapters} * n, width}, id, 0.02f)),
        n_groups(n_adapters) {
    PhiloxStream draw(id);
    for (int i = 0, left = n; i < of && left > 0; ++i)
      if (draw.below(static_cast<uint32_t>(of - i)) < static_cast<uint32_t>(left)) {
        index.push_back(i);
        --left;
      }
    for (int a = 0; a < n_adapters; ++a) {
      parts.push_back({values.view().slice(int64_t{a} * n, n).raw(), index.data(), n});
      adapter.push_back(a);
      rows.push_back(a);
      rows.insert(rows.end(), kGroupRows - 1, -1);
    }
  }
  Adapters(const Adapters&) = delete;
  Adapters& operator=(const Adapters&) = delete;
  RowGroups groups() const { return {adapter.data(), rows.data(), &n_groups, n_groups}; }
};

constexpr double kAbsolute = 1e-4;

PreparedCase prepare_dots(const KernelShapes& s, int rows) {
  const DType dtype = s.act();
  const auto a = std::make_shared<Adapters>(dtype, rows, s.slices, s.dim, s.dim, 1);
  const auto x = OwnedTensor::random(dtype, {rows, s.dim}, 2);
  const OwnedTensor y(dtype, {rows, s.dim}), want(dtype, {rows, s.dim});
  const auto run = [=] {
    ops::grouped_dots(y, x, a->parts.data(), 1, s.slices, a->groups(), ops::Accumulate::no);
  };
  const auto mismatch = [=] {
    std::fill_n(static_cast<std::byte*>(want.raw()), want.view().bytes(), std::byte{0});
    const GroupedDotsParams p{.y = want.raw(),
                              .x = x.raw(),
                              .parts = a->parts.data(),
                              .groups = a->groups(),
                              .y_stride = s.dim,
                              .in = s.dim,
                              .part_stride = 1,
                              .most = s.slices,
                              .type = dtype,
                              .y_type = dtype,
                              .add = false};
    grouped_dots_ref(p, {0, rows * ((s.slices + kDotParts - 1) / kDotParts)});
    return find_mismatch(y, want, 2 * spacing(dtype), kAbsolute);
  };
  std::fill_n(static_cast<std::byte*>(y.raw()), y.view().bytes(), std::byte{0});
  return {.run = run, .mismatch = mismatch};
}

void clear(const OwnedTensor& t) { std::fill_n(t.as<float>(), t.view().elements(), 0.0f); }

/// The check of y, to which `n` columns of each row of x were added when it was 0.
/// shapes   y [rows, width] f32, x [rows, x_width]
std::function<std::string()> sums_mismatch(const OwnedTensor& y, const OwnedTensor& x,
                                           const std::shared_ptr<Adapters>& a, int n) {
  const OwnedTensor want(DType::f32, {y.view().rows(), y.view().row_size()});
  return [=] {
    clear(want);
    const auto width = static_cast<int32_t>(y.view().row_size());
    const GroupedSumsParams p{.y = want.raw(),
                              .x = x.raw(),
                              .parts = a->parts.data(),
                              .groups = a->groups(),
                              .y_stride = width,
                              .x_stride = x.view().row_size(),
                              .part_stride = 1,
                              .most = n,
                              .n_targets = 1,
                              .targets = {{0, width, 0}},
                              .type = x.view().dtype(),
                              .y_type = DType::f32};
    grouped_sums_ref(p, {0, a->n_groups * sum_blocks(p)});
    return find_mismatch(y, want, 2 * spacing(DType::f32), kAbsolute);
  };
}

/// x W^T of columns, and `n` of them of x.
PreparedCase prepare_sums(const KernelShapes& s, int rows) {
  const DType dtype = s.act();
  const auto a = std::make_shared<Adapters>(dtype, rows, s.slices, s.dim, s.dim, 3);
  const auto x = OwnedTensor::random(dtype, {rows, s.dim}, 4);
  const OwnedTensor y(DType::f32, {rows, s.dim});
  const GroupedTarget all{0, s.dim, 0};
  clear(y);
  const auto run = [=] {
    ops::grouped_sums(y, x, a->parts.data(), 1, s.slices, {&all, 1}, a->groups());
  };
  return {.run = run, .mismatch = sums_mismatch(y, x, a, s.slices)};
}

/// Both products of low-rank factors.
PreparedCase prepare_factors(const KernelShapes& s, int rows) {
  const DType dtype = s.act();
  const auto a = std::make_shared<Adapters>(dtype, rows, s.rank, s.dim, s.rank, 5);
  const auto b = std::make_shared<Adapters>(dtype, rows, s.rank, s.dim, s.rank, 6);
  const auto x = OwnedTensor::random(dtype, {rows, s.dim}, 7);
  const OwnedTensor inner(dtype, {rows, s.rank}), y(DType::f32, {rows, s.dim});
  const GroupedTarget all{0, s.dim, 0};
  clear(y);
  const auto run = [=] {
    ops::grouped_dots(inner, x, a->parts.data(), 1, s.rank, a->groups(), ops::Accumulate::no);
    ops::grouped_sums(y, inner, b->parts.data(), 1, s.rank, {&all, 1}, b->groups());
  };
  return {.run = run, .mismatch = sums_mismatch(y, inner, b, s.rank)};
}

}  // namespace

KernelCases adapter_cases(const KernelShapes& s) {
  const DType dtype = s.act();
  const auto each = static_cast<double>(dtype_bytes(dtype));
  KernelCases cases;
  for (const int64_t n : s.rows) {
    const int rows = static_cast<int>(n);
    const auto add = [&](const char* name, int features, int factors, auto prepare) {
      const double numbers = static_cast<double>(rows) * features * factors * s.dim;
      const double moved = static_cast<double>(rows) * s.dim * (each + 4);
      cases.push_back(
          {.family = "adapter",
           .name = name,
           .shape = fmt::format("{} adapters x {}, {} of {}", rows, rows, features, s.dim),
           .dtype = dtype,
           .work = {.bytes = numbers * each + moved, .flops = 2 * numbers},
           .memory_bytes = static_cast<size_t>(numbers * each + 2 * moved),
           .prepare = [=] { return prepare(s, rows); }});
    };
    add("grouped_dots", s.slices, 1, prepare_dots);
    add("grouped_sums", s.slices, 1, prepare_sums);
    add("low_rank", s.rank, 2, prepare_factors);
  }
  return cases;
}

}  // namespace tandem::bench
