#pragma once
// Codes of tiles as numbers, alone or as fragments of m16n8k16's left operand.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/linear/code_tiles.h"

namespace tandem::tiles {

__device__ inline float scale_at(const uint8_t* at, bool f16) {
  const uint16_t bits = *reinterpret_cast<const uint16_t*>(at);
  const float narrow = __half2float(__ushort_as_half(bits));
  return f16 ? narrow : __uint_as_float(static_cast<unsigned>(bits) << 16);
}

/// An integer zero, which is subtracted from the codes of an output.
__device__ inline float zero_of(const uint8_t* zero, Code code) {
  return code == Code::i4 ? static_cast<float>(*zero)
                          : static_cast<float>(static_cast<int8_t>(*zero));
}

/// Factors whose products with a word, in their upper halves, are the word shifted right by 4, 8
/// and 12 bits. Integer products take another pipe than shifts, which codes of 4 bits would fill;
/// as parameters of a kernel they are not turned into shifts.
struct ShiftFactors {
  unsigned by[3];
};
inline constexpr ShiftFactors kShiftFactors = {{1u << 28, 1u << 24, 1u << 20}};

/// Registers of a fragment as integers in bf16: kBase more than the codes.
template <Code kCode>
struct Decoder;

template <>
struct Decoder<Code::i4> {
  static constexpr float kBase = 128;

  /// Step s of 16 inputs of a tile.
  __device__ static void fragment(unsigned (&a)[4], const uint4 (&pieces)[2], int s,
                                  const ShiftFactors& shift) {
    const uint4& piece = pieces[s / 4];
    const unsigned word = s % 4 == 0   ? piece.x
                          : s % 4 == 1 ? piece.y
                          : s % 4 == 2 ? piece.z
                                       : piece.w;
    // The bits of 128 in bf16, with the code in the last four, are 128 + code. The compiler would
    // make two instructions of (w & mask) | bits.
#pragma unroll
    for (int j = 0; j < 4; ++j)
      asm("lop3.b32 %0, %1, %2, %3, 0xea;"
          : "=r"(a[j])
          : "r"(j == 0 ? word : __umulhi(word, shift.by[j - 1])), "r"(0x000f000fu),
            "r"(0x43004300u));
  }
};

template <>
struct Decoder<Code::i8> {
  static constexpr float kBase = 0;

  __device__ static void fragment(unsigned (&a)[4], const uint4 (&pieces)[4], int s,
                                  const ShiftFactors&) {
    const uint4& piece = pieces[s / 2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const unsigned word =
          s % 2 == 0 ? (h == 0 ? piece.x : piece.y) : (h == 0 ? piece.z : piece.w);
      unsigned value[4];
      // The bits of 2^23, with a byte in the last eight. Integers below 2^8 then end in the upper
      // half of a float.
#pragma unroll
      for (int i = 0; i < 4; ++i)
        value[i] = __float_as_uint(__uint_as_float(__byte_perm(word, 0x4B000000u, 0x7650u + i)) -
                                   (8388608.0f + 128.0f));
      a[2 * h] = __byte_perm(value[0], value[2], 0x7632);
      a[2 * h + 1] = __byte_perm(value[1], value[3], 0x7632);
    }
  }
};

}  // namespace tandem::tiles
