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
/// missing  factor that fragments lack, by the code of a zero weight
template <Code kCode>
struct Exact {
  using Decode = tiles::Decoder<kCode>;
  static constexpr unsigned kMost = 0x7f00u, kLeast = 0xff00u;  // 2^127 and -2^127
  __device__ static constexpr float inverse(int h) { return 1 << (Decode::exponent(h) - 127); }

  template <int kPieces>
  __device__ static void fragment(unsigned (&a)[4], const uint4 (&pieces)[kPieces], int s,
                                  const unsigned (&missing)[2]) {
    Decode::fragment(a, pieces, s);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      a[j] = bits_of(__hfma2(as_bf16(a[j]), as_bf16(pair_of(kMost)), as_bf16(missing[j % 2])));
  }
  __device__ static unsigned missing(unsigned zero, int h) {
    return bits_of(__hmul2_rn(as_bf16(pair_of(zero) << (kCode == Code::i4 ? 4 * h : 0)),
                              as_bf16(pair_of(kLeast))));
  }
};

template <>
struct Exact<Code::fp8> {
  __device__ static constexpr float inverse(int) { return 1; }

  __device__ static void fragment(unsigned (&a)[4], const uint4 (&pieces)[4], int s,
                                  const unsigned (&)[2]) {
    constexpr unsigned kFactor = 0x7b80u;  // 2^120
    static_assert(tiles::Decoder<Code::fp8>::exponent(0) == 120);
    tiles::Decoder<Code::fp8>::fragment(a, pieces, s);
#pragma unroll
    for (unsigned& pair : a) pair = bits_of(__hmul2_rn(as_bf16(pair), as_bf16(pair_of(kFactor))));
  }
  __device__ static unsigned missing(unsigned, int) { return 0; }
};

}  // namespace tandem::coded
