#pragma once
// Codes of tiles as exact numbers in bf16.
#include "kernels/linear/code_tiles.cuh"

namespace tandem::coded {

__device__ inline unsigned pair_of(unsigned bits) { return bits * 0x00010001u; }
__device__ inline __nv_bfloat162 as_bf16(unsigned pair) {
  return *reinterpret_cast<const __nv_bfloat162*>(&pair);
}
__device__ inline unsigned bits_of(const __nv_bfloat162& pair) {
  return *reinterpret_cast<const unsigned*>(&pair);
}

/// Codes without their zero as exact numbers in bf16, those of outputs g + 8 h divided by
/// inverse(h).
/// missing  factor that fragments lack, by the bits of the zero
template <Code kCode>
struct Exact;

template <>
struct Exact<Code::i4> {
  __device__ static constexpr float inverse(int h) { return h == 0 ? 64 : 4; }
  static constexpr unsigned kMost = 0x7f00u, kLeast = 0xff00u;  // 2^127 and -2^127

  /// A code in bf16's last four bits is that multiple of 2^-133, in the four before of 2^-129.
  __device__ static void fragment(unsigned (&a)[4], const uint4 (&pieces)[2], int s,
                                  const unsigned (&missing)[2]) {
    const unsigned word = tiles::word_of(pieces[s / 4], s % 4);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      a[j] = bits_of(__hfma2((as_bf16((j < 2 ? word : word >> 8) & pair_of(j % 2 ? 0xf0 : 0x0f))),
                             as_bf16(pair_of(kMost)), as_bf16(missing[j % 2])));
  }
  __device__ static unsigned missing(unsigned zero, int h) {
    return bits_of(__hmul2_rn(as_bf16(pair_of(zero) << 4 * h), as_bf16(pair_of(kLeast))));
  }
};

template <>
struct Exact<Code::i8> {
  __device__ static constexpr float inverse(int) { return 1; }

  __device__ static void fragment(unsigned (&a)[4], const uint4 (&pieces)[4], int s,
                                  const unsigned (&missing)[2]) {
    tiles::Decoder<Code::i8>::fragment(a, pieces, s);
#pragma unroll
    for (int j = 0; j < 4; ++j) a[j] = bits_of(__hadd2_rn(as_bf16(a[j]), as_bf16(missing[j % 2])));
  }
  __device__ static unsigned missing(unsigned zero, int) {
    const auto less = -static_cast<float>(static_cast<int8_t>(zero));
    return pair_of(__float_as_uint(less) >> 16);
  }
};

template <>
struct Exact<Code::fp8> {
  __device__ static constexpr float inverse(int) { return 1; }

  __device__ static void fragment(unsigned (&a)[4], const uint4 (&pieces)[4], int s,
                                  const unsigned (&)[2]) {
    constexpr unsigned kFactor = 0x7b80u;  // 2^kExponent
    static_assert(tiles::Decoder<Code::fp8>::kExponent == 120);
    tiles::Decoder<Code::fp8>::fragment(a, pieces, s);
#pragma unroll
    for (unsigned& pair : a) pair = bits_of(__hmul2_rn(as_bf16(pair), as_bf16(pair_of(kFactor))));
  }
  __device__ static unsigned missing(unsigned, int) { return 0; }
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
  __device__ unsigned missing(unsigned zero, int h) const {
    return Exact<kCode>::missing((zero & kept) | otherwise, h);
  }
};

}  // namespace tandem::coded
