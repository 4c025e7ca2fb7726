#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/types.h"

namespace tandem {

/// Codes of single weights, a row each of the table in weight_format.cpp.
enum class Code : uint8_t { f32, bf16, f16, i4 };
enum class ScaleType : uint8_t { none, f16, bf16 };
/// A group's offset: an integer of 8 bits is subtracted from the codes; a minimum of the scale's
/// type is added to the scaled codes.
enum class Zero : uint8_t { none, integer, minimum };

/// Encoding of the weights of a matrix [out, in]: plain numbers, or codes with scales. A layout
/// says where the parts lie in memory.
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
/// The type of weights that are plain numbers.
DType numbers_of(const WeightFormat& format);
/// The narrowest type of numbers that holds every value of the code.
DType widens_to(const WeightFormat& format);
/// Inputs that a cut of columns keeps together: those of a group; 1 of plain numbers.
int64_t cut_unit(const WeightFormat& format, int64_t in);
/// Bytes of a row of `in` weights with its scales and zeros, in whole groups.
size_t row_bytes(const WeightFormat& format, int64_t in);
/// Returns the bytes of [out, in] rows, without a layout's padding.
size_t matrix_bytes(const WeightFormat& format, int64_t out, int64_t in);

}  // namespace tandem
