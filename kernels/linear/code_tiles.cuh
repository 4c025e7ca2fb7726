#pragma once
// Codes of tiles as numbers, alone or as fragments of m16n8k16's left operand.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/linear/code_tiles.h"

namespace tandem::tiles {

/// Scale or minimum i of an array; scales of fp8 are f32, those of other codes are not.
template <Code kCode>
__device__ inline float scale_at(const uint8_t* array, int i, ScaleType type) {
  if (kCode == Code::fp8) return reinterpret_cast<const float*>(array)[i];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(array)[i];
  const float narrow = __half2float(__ushort_as_half(bits));
  return type == ScaleType::f16 ? narrow : __uint_as_float(static_cast<unsigned>(bits) << 16);
}

__device__ inline float power_of_two(int exponent) {
  return __uint_as_float(static_cast<unsigned>(127 + exponent) << 23);
}

/// An integer zero, which is subtracted from the codes of an output.
__device__ inline float zero_of(const uint8_t* zero, Code code) {
  return code == Code::i4 ? static_cast<float>(*zero)
                          : static_cast<float>(static_cast<int8_t>(*zero));
}

__device__ inline unsigned word_of(const uint4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

/// Registers of a fragment as numbers in bf16: 2^-kExponent codes, plus kBase.
template <Code kCode>
struct Decoder;

template <>
struct Decoder<Code::i4> {
  static constexpr float kBase = 128;
  static constexpr int kExponent = 0;

  /// Step s of 16 inputs of a tile.
  __device__ static void fragment(unsigned (&a)[4], const uint4 (&pieces)[2], int s) {
    const unsigned word = word_of(pieces[s / 4], s % 4);
    // The bits of 128 in bf16, with the code in the last four, are 128 + code. The compiler would
    // make two instructions of (w & mask) | bits.
#pragma unroll
    for (int j = 0; j < 4; ++j)
      asm("lop3.b32 %0, %1, %2, %3, 0xea;"
          : "=r"(a[j])
          : "r"(word >> 4 * j), "r"(0x000f000fu), "r"(0x43004300u));
  }
};

template <>
struct Decoder<Code::i8> {
  static constexpr float kBase = 0;
  static constexpr int kExponent = 0;

  __device__ static void fragment(unsigned (&a)[4], const uint4 (&pieces)[4], int s) {
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

template <>
struct Decoder<Code::fp8> {
  static constexpr float kBase = 0;
  // The bits of a code, in the places of bf16's, are a number whose exponent has another bias.
  static constexpr int kExponent = 120;

  __device__ static void fragment(unsigned (&a)[4], const uint4 (&pieces)[4], int s) {
    const uint4& piece = pieces[s / 2];
    constexpr unsigned kSigns = 0x80008000u, kRest = 0x07f007f0u;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const unsigned odd = s % 2 == 0 ? (h == 0 ? piece.x : piece.y) : (h == 0 ? piece.z : piece.w);
      const unsigned even = odd << 8;
      a[2 * h] = (even & kSigns) | ((even >> 4) & kRest);
      a[2 * h + 1] = (odd & kSigns) | ((odd >> 4) & kRest);
    }
  }
};

/// The number of an fp8 code.
__device__ inline float fp8_number(unsigned code) {
  return __uint_as_float((code & 0x80) << 24 | (code & 0x7f) << 20) * power_of_two(120);
}

/// Turns the codes of a unit and an output into numbers, with the bits of `dequantize`.
template <Code kCode>
struct Scaling {
  static constexpr float kTwo23 = 8388608.0f;
  float scale, base, least;

  /// input, row   within the tile
  __device__ Scaling(const CodeTiles& w, const uint8_t* tile, int input, int row) {
    const int place = input * w.units() / kTileInputs * kTileOutputs + row;
    const uint8_t* const zeros = tile + w.zeros_at();
    scale = scale_at<kCode>(tile + w.scales_at(), place, w.scale);
    float zero = kCode == Code::i4 && w.zero == Zero::none ? 8 : 0;
    if (w.zero == Zero::integer) zero = zero_of(zeros + place, kCode);
    if (kCode == Code::i8) zero += 128;
    base = kTwo23 + zero;
    least = w.zero == Zero::minimum ? scale_at<kCode>(zeros, place, w.scale) : 0.0f;
  }
  __device__ float number(unsigned code) const {
    // The bits of 2^23 with a small integer in the last ones are their sum.
    const float value =
        kCode == Code::fp8 ? fp8_number(code) : __uint_as_float(0x4B000000u | code) - base;
    return __fadd_rn(__fmul_rn(scale, value), least);
  }
};

/// One number of a matrix.
template <Code kCode>
__device__ inline float number_at(const CodeTiles& w, int output, int input) {
  const int half = w.paired && output >= w.out / 2, across = w.paired ? 8 : kTileOutputs;
  const int in_half = output - half * (w.out / 2);
  const int row = in_half % across + 8 * half, high = row / 8, k = input % kTileInputs;
  const uint8_t* const tile =
      w.data + in_half / across * w.row_bytes() + input / kTileInputs * w.tile_bytes();
  const int lane = row % 8 * 4 + k % 8 / 2, odd = k % 2, eight = k % 16 / 8;
  const int piece = kTileInputs / w.pieces();
  const uint8_t* const at = tile + k / piece * kPieceBytes + lane * 16;
  const int step = k % piece / 16;
  const auto* const words = reinterpret_cast<const unsigned*>(at);
  const unsigned code = kCode == Code::i4 ? words[step] >> (4 * high + 8 * eight + 16 * odd) & 15
                                          : words[2 * step + eight] >> (8 * high + 16 * odd) & 255;
  return Scaling<kCode>(w, tile, k, row).number(code);
}

}  // namespace tandem::tiles
