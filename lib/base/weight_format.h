#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/types.h"

namespace tandem {

/// Encoding of the weights of a matrix [out, in]: plain numbers, or codes with scales. A row of
/// codes is one group after the other, each with its codes, its scale and its zero. Rows with
/// scales of two levels consist of blocks instead. CodeBits (base/two_level.h) has the layout of
/// codes. Products have other layouts.
struct WeightFormat {
  Code code = Code::bf16;
  int16_t group = 0;  // inputs that share a scale; 0: all of a row
  ScaleType scale = ScaleType::none;
  Zero zero = Zero::none;

  WeightFormat(DType numbers);  // implicit: a type of numbers (f32, bf16, f16) is a format
  WeightFormat(Code c, int16_t inputs, ScaleType s, Zero z)
      : code(c), group(inputs), scale(s), zero(z) {}
  bool operator==(const WeightFormat&) const = default;
};

/// "bf16", or as "i4 g64 f16 minimum".
std::string format_name(const WeightFormat& format);
/// True for codes with scales, false for plain numbers.
inline bool is_coded(const WeightFormat& format) { return format.scale != ScaleType::none; }
/// The type of weights that are plain numbers.
DType numbers_of(const WeightFormat& format);
/// The narrowest type of numbers that holds every value of the code.
DType widens_to(const WeightFormat& format);
/// Bytes of a group's scale and zero, not of two levels; 0 of plain numbers.
size_t scale_bytes(const WeightFormat& format);
/// Inputs of a group, or of a block with scales of two levels; 1 of plain numbers.
int64_t cut_unit(const WeightFormat& format, int64_t in);
/// Bytes of a row of `in` weights with its scales and zeros, in whole groups or blocks.
size_t row_bytes(const WeightFormat& format, int64_t in);
/// Returns the bytes of [out, in] rows, without a layout's padding.
size_t matrix_bytes(const WeightFormat& format, int64_t out, int64_t in);

}  // namespace tandem
