#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/channels/weight_part.h"
#include "ops/linear_device.h"
#include "ops/linear_gradient.h"

namespace tandem::ops {

/// A matrix [out, in] of codes that training reads on the CPU, in rows as its source gives them.
/// Some rows or columns can be held as numbers next to the codes. Products turn one tile after
/// another into numbers of the inputs' type, rounded to nearest even: a matrix is never all
/// numbers.
class FrozenCodes {
 public:
  using Spec = PackedWeights::Spec;

  static size_t bytes(const Spec& spec);
  /// Scratch for either product on at most `rows` rows.
  static size_t workspace_bytes(const Spec& spec, int64_t rows);
  /// memory   bytes(spec), which load fills
  FrozenCodes(const Spec& spec, std::byte* memory);

  /// Takes all rows from the source, at most n_at_once at a time.
  void load(const PackedWeights::RowSource& rows, int64_t n_at_once);
  /// Takes a part, rows or columns, out of the codes. Its numbers begin as those of the codes.
  /// shapes   values as read's, of the inputs' type; index and values outlive this
  void hold(WeightPart part, std::span<const int32_t> index, void* values);

  /// y = x W^T + b, or y += x W^T + b.
  /// bias     [out], or null
  void multiply(const Operands& at, const float* bias, bool accumulate) const;
  /// dx = dy W, or dx += dy W.
  void input_gradient(const Tensor& dx, const Tensor& dy, bool accumulate,
                      std::span<std::byte> workspace) const;

  /// Visits rows like ops::each_rows.
  void each_rows(int64_t first, int64_t n, std::span<std::byte> workspace,
                 const VisitRows& visit) const;

  /// Numbers of the part that is held, or of rows, columns or all of the codes.
  /// shapes   [n, in] of rows, [out, n] of columns, [out, in] of all
  void read(std::span<float> out, WeightPart part, std::span<const int32_t> index) const;
  /// Replaces the numbers of the part that is held, rounded to nearest even.
  void write(WeightPart part, std::span<const float> values);

 private:
  struct Rows {
    WeightFormat format;
    int64_t first, n;
    std::byte* codes;
  };
  struct Tile {
    int64_t row, rows, column, columns;
  };

  /// Writes a tile's numbers, [rows, columns].
  void decode(const Tile& tile, DType type, void* to) const;
  /// Puts the held numbers in their places of a tile.
  void put_held(const Tile& tile, void* to) const;
  bool holds(WeightPart part) const { return values_ != nullptr && part == part_; }

  Spec spec_;
  std::vector<Rows> rows_;  // in order
  WeightPart part_ = WeightPart::rows;
  std::span<const int32_t> index_ = {};
  std::byte* values_ = nullptr;  // null: nothing is held
};

}  // namespace tandem::ops
