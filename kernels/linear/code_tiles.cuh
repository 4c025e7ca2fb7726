#pragma once
// Codes of tiles as numbers, alone or as fragments of m16n8k16's left operand.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/linear/code_tiles.h"

namespace tandem::tiles {

__device__ inline float power_of_two(int exponent) {
  return __uint_as_float(static_cast<unsigned>(127 + exponent) << 23);
}

/// Exact below 2^23: the bits of 2^23 with a small integer in the last ones are their sum.
__device__ inline float small_integer(unsigned n) {
  return __uint_as_float(0x4B000000u | n) - 8388608.0f;
}

__device__ inline unsigned word_of(const uint4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

/// Registers of a fragment as numbers in bf16: codes, without their zero, times 2^-exponent(h) for
/// outputs g + 8 h. The last eight bits of bf16 are an integer times 2^-133: numbers with exponent
/// 0 or 1 have one spacing.
template <Code kCode>
struct Decoder;

template <>
struct Decoder<Code::i4> {
  __device__ static constexpr int exponent(int h) { return 133 - 4 * h; }

  /// Step s of 16 inputs of a tile.
  __device__ static void fragment(unsigned (&a)[4], const uint4 (&pieces)[2], int s) {
    const unsigned word = word_of(pieces[s / 4], s % 4), next = word >> 8;
    a[0] = word & 0x000f000fu;
    a[1] = word & 0x00f000f0u;
    a[2] = next & 0x000f000fu;
    a[3] = next & 0x00f000f0u;
  }
};

template <>
struct Decoder<Code::i8> {
  __device__ static constexpr int exponent(int) { return 133; }

  __device__ static void fragment(unsigned (&a)[4], const uint4 (&pieces)[4], int s) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const unsigned word = word_of(pieces[s / 2], s % 2 * 2 + h);
      a[2 * h] = word & 0x00ff00ffu;
      a[2 * h + 1] = __byte_perm(word, 0, 0x4341);
    }
  }
};

template <>
struct Decoder<Code::fp8> {
  // The bits of a code, in the places of bf16's, are a number whose exponent has another bias.
  __device__ static constexpr int exponent(int) { return 120; }

  __device__ static void fragment(unsigned (&a)[4], const uint4 (&pieces)[4], int s) {
    constexpr unsigned kSigns = 0x80008000u, kRest = 0x07f007f0u;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const unsigned odd = word_of(pieces[s / 2], s % 2 * 2 + h), even = odd << 8;
      a[2 * h] = (even & kSigns) | ((even >> 4) & kRest);
      a[2 * h + 1] = (odd & kSigns) | ((odd >> 4) & kRest);
    }
  }
};

/// Reads scales and zeros of a matrix without branches.
template <Code kCode, bool kMinimum>
struct Reader {
  bool narrow;               // scales are f16, not bf16
  unsigned kept, otherwise;  // bits of an integer zero, and what takes its place

  __device__ explicit Reader(const CodeTiles& w)
      : narrow(w.scale == ScaleType::f16),
        kept(!kMinimum && w.zero == Zero::integer ? 0xff : 0),
        otherwise(kCode == Code::i4 && w.zero == Zero::none ? 8 : 0) {}

  __device__ static unsigned scale_bits(const uint8_t* array, int i) {
    return kCode == Code::fp8 ? reinterpret_cast<const unsigned*>(array)[i]
                              : reinterpret_cast<const uint16_t*>(array)[i];
  }
  __device__ float scale(unsigned bits) const {
    if (kCode == Code::fp8) return __uint_as_float(bits);
    const float of_f16 = __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
    const float of_bf16 = __uint_as_float(bits << 16);
    float value;
    asm("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\nselp.f32 %0, %1, %2, p;\n}"
        : "=f"(value)
        : "f"(of_f16), "f"(of_bf16), "r"(static_cast<int>(narrow)));
    return value;
  }
  /// The code of a zero weight, from the byte of an integer zero.
  __device__ unsigned zero(unsigned byte) const {
    return ((byte & kept) | otherwise) ^ (kCode == Code::i8 ? 0x80 : 0);
  }
};

__device__ inline unsigned pair_of(unsigned bits) { return bits * 0x00010001u; }
__device__ inline __nv_bfloat162 as_bf16(unsigned pair) {
  return *reinterpret_cast<const __nv_bfloat162*>(&pair);
}
__device__ inline unsigned bits_of(const __nv_bfloat162& pair) {
  return *reinterpret_cast<const unsigned*>(&pair);
}

/// A pair of a fragment without its zero, as exact numbers: those of outputs g + 8 h divided by
/// inverse(h).
/// missing  minus the code of a zero weight, as `missing` returns it
template <Code kCode>
struct Exact {
  static constexpr bool kIsFp8 = kCode == Code::fp8;
  // Infinity is 2^128: integers take two steps.
  static constexpr int kExponent = kIsFp8 ? 120 : 127;
  static constexpr unsigned kFactor = (127 + kExponent) << 7;

  __device__ static constexpr float inverse(int h) {
    return 1 << (Decoder<kCode>::exponent(h) - kExponent);
  }
  __device__ static unsigned pair(unsigned bits, unsigned missing) {
    const __nv_bfloat162 factor = as_bf16(pair_of(kFactor));
    return bits_of(kIsFp8 ? __hmul2_rn(as_bf16(bits), factor)
                          : __hfma2(as_bf16(bits), factor, as_bf16(missing)));
  }
  /// zero     code of a zero weight
  __device__ static unsigned missing(unsigned zero, int h) {
    if (kIsFp8) return 0;
    return bits_of(__hmul2_rn(as_bf16(pair_of(zero) << (kCode == Code::i4 ? 4 * h : 0)),
                              as_bf16(pair_of(kFactor | 0x8000u))));
  }
};

/// Turns the codes of a unit and an output into numbers, with the bits of `dequantize`.
template <Code kCode>
struct Scaling {
  float scale, least;
  unsigned missing;

  /// input, row   within the tile
  __device__ Scaling(const CodeTiles& w, const uint8_t* tile, int input, int row) {
    const int place = input * w.units() / kTileInputs * w.outputs_of_tile() + row;
    const uint8_t* const scales = tile + w.scales_at();
    const uint8_t* const zeros = tile + w.zeros_at();
    const Reader<kCode, false> read(w);
    const bool minimum = w.zero == Zero::minimum;
    scale = read.scale(read.scale_bits(scales, place)) * Exact<kCode>::inverse(0);
    least = minimum ? read.scale(read.scale_bits(zeros, place)) : 0.0f;
    missing = Exact<kCode>::missing(read.zero(w.zero == Zero::integer ? zeros[place] : 0), 0);
  }
  /// codes    two, each in the last bits of a half
  __device__ float2 numbers(unsigned codes) const {
    if (kCode == Code::fp8) codes = (codes << 8 & 0x80008000u) | (codes << 4 & 0x07f007f0u);
    const unsigned exact = Exact<kCode>::pair(codes, missing);
    const auto number = [&](unsigned bits) {
      return __fadd_rn(__fmul_rn(scale, __uint_as_float(bits)), least);
    };
    return {number(exact << 16), number(exact & 0xffff0000u)};
  }
};

/// The codes of an output in strips of two inputs, each in the last bits of a half.
/// a, b     words of the strips, which hold the codes of 8 outputs (i4) or 4
template <Code kCode>
__device__ inline unsigned codes_of(unsigned a, unsigned b, int output) {
  constexpr int kEach = kCode == Code::i4 ? 4 : 2;
  const unsigned both = __byte_perm(a, b, output < kEach ? 0x5410 : 0x7632);
  return kCode == Code::i4 ? both >> (4 * (output % 4)) & 0x000f000fu
                           : both >> (8 * (output % 2)) & 0x00ff00ffu;
}

/// One number of a matrix.
template <Code kCode>
__device__ inline float number_at(const CodeTiles& w, int output, int input) {
  if (w.by_input) {
    const int row = output % kStripOutputs, k = input % kTileInputs;
    const uint8_t* const tile =
        w.data + output / kStripOutputs * w.row_bytes() + input / kTileInputs * w.tile_bytes();
    const uint8_t* const strip = tile + k * w.strip_bytes();
    const unsigned code = kCode == Code::i4 ? strip[row / 2] >> (row % 2 * 4) & 15 : strip[row];
    return Scaling<kCode>(w, tile, k, row).numbers(code).x;
  }
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
  return Scaling<kCode>(w, tile, k, row).numbers(code).x;
}
__device__ inline float number_at(const CodeTiles& w, int output, int input) {
  return w.code == Code::i4   ? number_at<Code::i4>(w, output, input)
         : w.code == Code::i8 ? number_at<Code::i8>(w, output, input)
                              : number_at<Code::fp8>(w, output, input);
}

}  // namespace tandem::tiles
