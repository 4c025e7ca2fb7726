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
