#pragma once
// Plain number types shared by the library and the kernels. No functions and no STL here: this file
// is included by sources compiled with per-ISA flags, where an inline function could be emitted
// with instructions that other CPUs lack. Conversions are in base/convert.h.
#include <stdint.h>

namespace tandem {

struct bf16 {
  uint16_t bits;
};

struct f16 {
  uint16_t bits;
};

enum class DType : uint8_t { f32, bf16, f16, i32, i64, u8 };

/// Codes of single weights, a row each of the table in weight_format.cpp. i4 goes from 0 to 15, i5
/// to 31, i6 to 63, i8 from -128 to 127. fp8 holds numbers in E4M3. They have 1 sign, 4 exponent
/// and 3 mantissa bits, are at most 448, and have no infinity. Its NaN, 0x7f and 0xff, does not
/// occur.
enum class Code : uint8_t { f32, bf16, f16, i4, i8, fp8, i5, i6 };
/// two_level: an integer of 8 bits for each group times an f16 for each 256 inputs.
enum class ScaleType : uint8_t { none, f16, bf16, f32, two_level };
/// A group's offset, which fp8 has not. Without one, a weight is scale * code, of i4, i5 and i6
/// scale * (code - 8, 16 or 32). An integer of 8 bits, unsigned for i4 and signed for i8, is
/// subtracted from the codes. A minimum of the scale's type is added to scale * code.
enum class Zero : uint8_t { none, integer, minimum };

/// A queue of work on a GPU (a cudaStream_t); null on the CPU, where calls return when they are
/// done.
struct Stream {
  void* handle = nullptr;
};

/// Half-open range of work items given to one thread.
struct Range {
  int begin;
  int end;
};

}  // namespace tandem
