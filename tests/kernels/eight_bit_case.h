#pragma once
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/convert.h"
#include "base/rng.h"
#include "kernels/page/eight_bit_rows.h"

/// Rows that become narrow and wide again, for tests on either device.
namespace tandem::test {

/// Makes of a row, f32 numbers of a type, what eight bits make of it.
inline void round_to_eight_bits(float* row, DType dtype, int d) {
  const auto n = static_cast<size_t>(d);
  std::vector<int8_t> numbers(n);
  std::vector<bf16> half(n);
  for (size_t c = 0; c < n; ++c) half[c] = to_bf16(row[c]);
  const bool is_half = dtype == DType::bf16;
  float scale = 0;
  void* const wide = is_half ? static_cast<void*>(half.data()) : row;
  const EightBitRowsParams p{numbers.data(), &scale, wide, dtype, 1, d, 1};
  narrow_rows_scalar(p, {0, 1});
  widen_eight_bit_rows_scalar(p, {0, 1});
  for (size_t c = 0; is_half && c < n; ++c) row[c] = to_float(half[c]);
}

struct EightBitCase {
  int n_rows, d;
  DType dtype;
  std::vector<std::byte> wide;
  std::vector<int8_t> rows;
  std::vector<float> scales;  // every other one is of the rows
  static constexpr int kStride = 2;
  static constexpr float kGap = -5;  // between

  /// Rows of many magnitudes; of zeros; of numbers too small; with an infinity; with a NaN; with
  /// the largest number; with one number above all others.
  EightBitCase(DType type, int dim, int random_rows = 200)
      : n_rows(random_rows + 6),
        d(dim),
        dtype(type),
        wide(static_cast<size_t>(n_rows * d) * dtype_bytes(type)),
        rows(static_cast<size_t>(n_rows * d), int8_t{99}),
        scales(static_cast<size_t>(n_rows * kStride), kGap) {
    PhiloxStream draw(11, static_cast<uint32_t>(dim));
    for (int i = 0; i < n_rows; ++i) {
      const float size = std::exp(static_cast<float>(20 * draw.uniform() - 10));
      for (int c = 0; c < d; ++c) set(i, c, size * static_cast<float>(2 * draw.uniform() - 1));
    }
    for (int c = 0; c < d; ++c) {
      set(random_rows, c, 0);
      set(random_rows + 1, c, 1e-38f);
    }
    set(random_rows + 2, d - 1, std::numeric_limits<float>::infinity());
    set(random_rows + 3, 0, std::numeric_limits<float>::quiet_NaN());
    set(random_rows + 4, d / 2,
        -(dtype == DType::f32 ? std::numeric_limits<float>::max() : to_float(bf16{0x7f7f})));
    set(random_rows + 5, 0, 1e4f);
  }
  float get(int row, int c) const {
    const size_t i = static_cast<size_t>(row * d + c);
    if (dtype == DType::f32) return reinterpret_cast<const float*>(wide.data())[i];
    return to_float(reinterpret_cast<const bf16*>(wide.data())[i]);
  }
  void set(int row, int c, float x) {
    const size_t i = static_cast<size_t>(row * d + c);
    if (dtype == DType::f32)
      reinterpret_cast<float*>(wide.data())[i] = x;
    else
      reinterpret_cast<bf16*>(wide.data())[i] = to_bf16(x);
  }
  float scale(int row) const { return scales[static_cast<size_t>(row * kStride)]; }
  int8_t number(int row, int c) const { return rows[static_cast<size_t>(row * d + c)]; }
  bool is_finite(int row) const { return row != n_rows - 4 && row != n_rows - 3; }
  EightBitRowsParams params() {
    return {rows.data(), scales.data(), wide.data(), dtype, n_rows, d, kStride};
  }
  /// Bytes of the narrow rows; a NaN is like another.
  bool same_narrow(const EightBitCase& other) const {
    bool same = rows == other.rows;
    for (size_t i = 0; i < scales.size(); ++i)
      same = same &&
             (std::isnan(scales[i]) ? std::isnan(other.scales[i]) : scales[i] == other.scales[i]);
    return same;
  }
};

inline std::vector<EightBitCase> eight_bit_cases() {
  std::vector<EightBitCase> all;
  for (const DType type : {DType::f32, DType::bf16})
    for (const int d : {1, 2, 7, 16, 20, 32, 64, 80, 96, 128, 256}) all.emplace_back(type, d);
  return all;
}

}  // namespace tandem::test
