#include "ops/frozen_codes.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "base/convert.h"
#include "base/parallel.h"
#include "ops/loading.h"
#include "ops/matmul.h"
#include "ops/quantizing.h"

namespace tandem::ops {
namespace {

using Spec = PackedWeights::Spec;

/// Numbers of a tile: few compared with a micro-batch's activations, and enough for products at
/// full rate.
constexpr int64_t kTileNumbers = int64_t{1} << 21;
/// Rows and columns of a tile are multiples of this where they can be: oneDNN's blocks divide it.
constexpr int64_t kTileUnit = 64;
/// Rows that a thread decodes at a time, at least.
constexpr int kRowsEach = 16;

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

int64_t tile_of(int64_t across, int64_t unit, int64_t most) {
  return std::min(most, std::max<int64_t>(1, kTileNumbers / across / unit) * unit);
}

int64_t tile_rows(const Spec& spec) { return tile_of(spec.in, kTileUnit, spec.out); }

/// Columns begin at a group, or a block, of every format.
int64_t tile_columns(const Spec& spec) {
  int64_t unit = kTileUnit;
  for (const Spec::Stacked& s : spec.stacks())
    if (s.stored.group > 0) unit = std::lcm(unit, cut_unit(s.stored, spec.in));
  return tile_of(spec.out, unit, spec.in);
}

size_t tile_bytes(const Spec& spec) {
  const int64_t numbers = std::max(tile_rows(spec) * spec.in, spec.out * tile_columns(spec));
  return aligned(static_cast<size_t>(numbers) * dtype_bytes(spec.input));
}

/// Calls visit(a row's bytes) for rows of a matrix, on all threads.
template <class Visit>
void each_row(int64_t n, void* rows, size_t bytes, const Visit& visit) {
  parallel_ranges(static_cast<int>(n), kRowsEach, [&](int begin, int end) {
    for (int64_t r = begin; r < end; ++r)
      visit(r, static_cast<std::byte*>(rows) + static_cast<size_t>(r) * bytes);
  });
}

/// y = b, or y += b.
void put_bias(const Tensor& y, const float* bias, bool add) {
  each_row(y.rows(), y.raw(), static_cast<size_t>(y.row_size()) * dtype_bytes(y.dtype()),
           [&](int64_t, std::byte* row) {
             if (!add) return convert(row, y.dtype(), bias, DType::f32, y.row_size());
             auto* const sums = reinterpret_cast<float*>(row);  // sums are f32
             for (int64_t i = 0; i < y.row_size(); ++i) sums[i] += bias[i];
           });
}

}  // namespace

size_t FrozenCodes::bytes(const Spec& spec) {
  size_t sum = 0;
  for (const Spec::Stacked& s : spec.stacks()) sum += matrix_bytes(s.stored, s.rows, spec.in);
  return sum;
}

size_t FrozenCodes::workspace_bytes(const Spec& spec, int64_t rows) {
  const int64_t n = tile_rows(spec), columns = tile_columns(spec);
  const int64_t forward = rows * (n + spec.in) + n * spec.in,
                backward = rows * (columns + spec.out) + spec.out * columns;
  return tile_bytes(spec) +
         matmul_workspace_bytes(spec.input, std::max(forward, backward), spec.device, spec.bias);
}

FrozenCodes::FrozenCodes(const Spec& spec, std::byte* memory) : spec_(spec) {
  int64_t first = 0;
  for (const Spec::Stacked& s : spec.stacks()) {
    TANDEM_CHECK(is_coded(s.stored) || s.stored == spec.input, "{}: {} rows next to codes",
                 spec.name, format_name(s.stored));
    rows_.push_back({s.stored, first, s.rows, memory});
    memory += matrix_bytes(s.stored, s.rows, spec.in);
    first += s.rows;
  }
}

void FrozenCodes::load(const PackedWeights::RowSource& rows, int64_t n_at_once) {
  for (const Rows& part : rows_)
    for (int64_t begin = 0; begin < part.n; begin += n_at_once) {
      const int64_t end = std::min(part.n, begin + n_at_once);
      rows(part.first + begin, part.first + end,
           part.codes + matrix_bytes(part.format, begin, spec_.in));
    }
}

void FrozenCodes::hold(WeightPart part, std::span<const int32_t> index, void* values) {
  const auto n =
      index.size() * static_cast<size_t>(part == WeightPart::rows ? spec_.in : spec_.out);
  std::vector<float> numbers(n);
  read(numbers, part, index);
  part_ = part;
  index_ = index;
  values_ = static_cast<std::byte*>(values);
  write(part, numbers);
}

void FrozenCodes::multiply(const Operands& at, const float* bias, bool accumulate) const {
  if (bias != nullptr) put_bias(at.y, bias, accumulate);
  void* const tile = at.workspace.data();
  const std::span<std::byte> rest = at.workspace.subspan(tile_bytes(spec_));
  for (int64_t row = 0; row < spec_.out; row += tile_rows(spec_)) {
    const int64_t n = std::min(tile_rows(spec_), spec_.out - row);
    decode({row, n, 0, spec_.in}, spec_.input, tile);
    matmul({.c = MatrixView(at.y).columns(row, n),
            .a = MatrixView(at.x),
            .b = {tile, spec_.input, n, spec_.in},
            .b_transposed = true,
            .accumulate = accumulate || bias != nullptr},
           rest);
  }
}

void FrozenCodes::input_gradient(const Tensor& dx, const Tensor& dy, bool accumulate,
                                 std::span<std::byte> workspace) const {
  const std::span<std::byte> rest = workspace.subspan(tile_bytes(spec_));
  for (int64_t column = 0; column < spec_.in; column += tile_columns(spec_)) {
    const int64_t n = std::min(tile_columns(spec_), spec_.in - column);
    decode({0, spec_.out, column, n}, spec_.input, workspace.data());
    matmul({.c = MatrixView(dx).columns(column, n),
            .a = MatrixView(dy),
            .b = {workspace.data(), spec_.input, spec_.out, n},
            .accumulate = accumulate},
           rest);
  }
}

void FrozenCodes::each_rows(int64_t first, int64_t n, std::span<std::byte> workspace,
                            const VisitRows& visit) const {
  for (int64_t row = first; row < first + n; row += tile_rows(spec_)) {
    const int64_t rows = std::min(tile_rows(spec_), first + n - row);
    decode({row, rows, 0, spec_.in}, spec_.input, workspace.data());
    visit(row, Tensor(workspace.data(), spec_.input, {rows, spec_.in}),
          workspace.subspan(tile_bytes(spec_)));
  }
}

void FrozenCodes::read(std::span<float> out, WeightPart part,
                       std::span<const int32_t> index) const {
  if (holds(part))
    return convert(out.data(), DType::f32, values_, spec_.input, static_cast<int64_t>(out.size()));
  const auto n = static_cast<int64_t>(index.size());
  if (part == WeightPart::all) return decode({0, spec_.out, 0, spec_.in}, DType::f32, out.data());
  if (part == WeightPart::rows) {
    for (int64_t i = 0; i < n; ++i)
      decode({index[static_cast<size_t>(i)], 1, 0, spec_.in}, DType::f32,
             out.data() + i * spec_.in);
    return;
  }
  TANDEM_CHECK(part == WeightPart::columns, "{}: single weights of codes", spec_.name);
  const int64_t each = tile_columns(spec_);
  std::vector<float> tile;
  for (int64_t column = 0; column < spec_.in; column += each) {
    const int64_t columns = std::min(each, spec_.in - column);
    const auto is_here = [&](int64_t i) { return i >= column && i < column + columns; };
    if (std::ranges::none_of(index, is_here)) continue;
    tile.resize(static_cast<size_t>(spec_.out * columns));
    decode({0, spec_.out, column, columns}, DType::f32, tile.data());
    each_row(spec_.out, out.data(), static_cast<size_t>(n) * sizeof(float),
             [&](int64_t r, std::byte* row) {
               for (int64_t i = 0; i < n; ++i)
                 if (const int64_t at = index[static_cast<size_t>(i)]; is_here(at))
                   reinterpret_cast<float*>(row)[i] =
                       tile[static_cast<size_t>(r * columns + at - column)];
             });
  }
}

void FrozenCodes::write(WeightPart part, std::span<const float> values) {
  TANDEM_CHECK(holds(part), "{}: codes cannot be changed", spec_.name);
  convert(values_, spec_.input, values.data(), DType::f32, static_cast<int64_t>(values.size()));
}

void FrozenCodes::decode(const Tile& tile, DType type, void* to) const {
  auto* out = static_cast<std::byte*>(to);
  const int64_t end = tile.row + tile.rows;
  for (const Rows& part : rows_) {
    const int64_t lo = std::max(tile.row, part.first), hi = std::min(end, part.first + part.n);
    if (lo >= hi) continue;
    const std::byte* const from = part.codes + matrix_bytes(part.format, lo - part.first, spec_.in);
    const size_t bytes = static_cast<size_t>(tile.columns) * dtype_bytes(type);
    if (is_coded(part.format))
      dequantize_columns(out, type, from, part.format, hi - lo, spec_.in, tile.column,
                         tile.columns);
    else
      each_row(hi - lo, out, bytes, [&](int64_t r, std::byte* row) {
        convert(row, type, from + row_bytes(part.format, r * spec_.in + tile.column),
                numbers_of(part.format), tile.columns);
      });
    out += static_cast<size_t>(hi - lo) * bytes;
  }
  if (values_ != nullptr && type == spec_.input) put_held(tile, to);
}

void FrozenCodes::put_held(const Tile& tile, void* to) const {
  const size_t size = dtype_bytes(spec_.input), bytes = static_cast<size_t>(tile.columns) * size;
  const auto n = static_cast<int64_t>(index_.size());
  const auto held = [&](int64_t number) { return values_ + static_cast<size_t>(number) * size; };
  if (part_ == WeightPart::rows) {
    for (int64_t i = 0; i < n; ++i)
      if (const int64_t row = index_[static_cast<size_t>(i)] - tile.row;
          row >= 0 && row < tile.rows)
        std::memcpy(static_cast<std::byte*>(to) + static_cast<size_t>(row) * bytes,
                    held(i * spec_.in + tile.column), bytes);
    return;
  }
  each_row(tile.rows, to, bytes, [&](int64_t r, std::byte* row) {
    for (int64_t i = 0; i < n; ++i)
      if (const int64_t column = index_[static_cast<size_t>(i)] - tile.column;
          column >= 0 && column < tile.columns)
        std::memcpy(row + static_cast<size_t>(column) * size, held((tile.row + r) * n + i), size);
  });
}

}  // namespace tandem::ops
