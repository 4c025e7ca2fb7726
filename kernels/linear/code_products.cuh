#pragma once
// Products of codes and few rows of x on tensor cores. Codes are too large by their zero. The
// kernels subtract the zero times the sum of x in a unit, which is a product with ones.
#include "kernels/linear/code_tiles.cuh"
#include "kernels/linear/skinny_linear.cuh"

namespace tandem::tiles {

__host__ __device__ constexpr int padded(int in) {
  return (in + kTileInputs - 1) / kTileInputs * kTileInputs;
}
// Rows of x lie 4 of the 32 banks apart: a quarter warp reads two of them.
__host__ __device__ constexpr int pitch_of(int in) { return padded(in) + 8; }

/// Half of what codes lack is in x, half in the scales: neither leaves the range of its type.
template <Code kCode>
constexpr int kInX = Decoder<kCode>::exponent(0) / 2;

/// Two numbers in bf16, multiplied by 2^kExponent.
template <int kExponent>
__device__ inline unsigned scaled(unsigned pair) {
  if (kExponent == 0) return pair;
  return bits_of(__hmul2(as_bf16(pair), __float2bfloat162_rn(power_of_two(kExponent))));
}

/// Columns 16 s + 8 h + 2 t + e of 64 lie at 16 t + 4 s + 2 h + e, multiplied by 2^kExponent.
template <int kExponent = 0>
struct LaneOrder {
  __device__ static int at(int k) {
    return (k & ~63) + ((k >> 1 & 3) << 4) + ((k >> 4 & 3) << 2) + ((k >> 3 & 1) << 1) + (k & 1);
  }
  __device__ static void place(__nv_bfloat16* row, int k, uint2 four) {
    *reinterpret_cast<unsigned*>(row + at(k)) = scaled<kExponent>(four.x);
    *reinterpret_cast<unsigned*>(row + at(k + 2)) = scaled<kExponent>(four.y);
  }
};

/// Copies rows of x, with zeros after the last column.
template <class Order, int kThreads>
__device__ void load_input(const void* from, int rows, int in, __nv_bfloat16* x) {
  const int eights = padded(in) / 8, pitch = pitch_of(in);
  for (int i = threadIdx.x; i < rows * eights; i += kThreads) {
    const int n = i / eights, k = i % eights * 8;
    uint4 v{0, 0, 0, 0};
    if (k < in)
      v = *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(from) +
                                          static_cast<int64_t>(n) * in + k);
    Order::place(x + n * pitch, k, {v.x, v.y});
    Order::place(x + n * pitch, k + 4, {v.z, v.w});
  }
  __syncthreads();
}

/// Factors of the sums of codes times x, and of the sums of x, for outputs g + 8 h.
/// kZero    minimum; else integer or none, of which bits of zeros are 0
template <Code kCode, Zero kZero>
struct Factors {
  static constexpr bool kHasZero = kCode != Code::fp8;
  float codes, inputs = 0;

  __device__ Factors(const Reader<kCode, kZero == Zero::minimum>& read, unsigned scale_bits,
                     unsigned zero_bits, int h) {
    const float scale = read.scale(scale_bits), small = power_of_two(-kInX<kCode>);
    codes = scale * power_of_two(Decoder<kCode>::exponent(h) - kInX<kCode>);
    if (!kHasZero) return;
    const float zero = kZero == Zero::integer ? small_integer(read.zero(zero_bits))
                       : kCode == Code::i8    ? 128.0f
                       : kZero == Zero::none  ? 8.0f
                                              : 0.0f;
    if (kZero == Zero::minimum)
      inputs = fmaf(-scale, zero, read.scale(zero_bits)) * small;
    else if (kZero == Zero::integer)
      inputs = -scale * zero * small;
    else
      inputs = scale * (-zero * small);
  }
  __device__ void add(float& to, float of_codes, float of_inputs) const {
    to = fmaf(codes, of_codes, to);
    if (kHasZero) to = fmaf(inputs, of_inputs, to);
  }
};

/// Adds the products of kTiles tiles, unit by unit.
/// slot     the tiles, one after the other
/// scales   (tile, place, at): bits of the scale of a tile, which begins at `at`, and of its zero
/// piece    (k, j): of x's row g + 8 j the lane's columns of steps k and k + 1
template <Code kCode, int kUnit, Zero kZero, int kTiles, int kGroups, class Scales, class Piece>
__device__ __forceinline__ void add_tiles(skinny::Sums<kGroups> (&sums)[kTiles],
                                          const unsigned char* slot, int tile_bytes,
                                          const Reader<kCode, kZero == Zero::minimum>& read,
                                          int lane, const Scales& scales, const Piece& piece) {
  using Decode = Decoder<kCode>;
  constexpr int kPieces = kCode == Code::i4 ? 2 : 4, kUnits = kTileInputs / kUnit,
                kUnitSteps = kUnit / 16;
  constexpr unsigned kOnes = 0x3f803f80u;
  constexpr bool kHasZero = kCode != Code::fp8;
  uint4 codes[kTiles][kPieces];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      codes[tile][i] =
          *reinterpret_cast<const uint4*>(slot + tile * tile_bytes + i * kPieceBytes + lane * 16);
  uint4 b[kGroups];
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
    float part[kTiles][kGroups][4] = {}, inputs[kGroups][4] = {};
#pragma unroll
    for (int k = unit * kUnitSteps; k < (unit + 1) * kUnitSteps; ++k) {
      if (k % 2 == 0)
#pragma unroll
        for (int j = 0; j < kGroups; ++j) b[j] = piece(k, j);
      const auto low = [&](int j) { return k % 2 == 0 ? b[j].x : b[j].z; };
      const auto high = [&](int j) { return k % 2 == 0 ? b[j].y : b[j].w; };
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        unsigned a[4];
        Decode::fragment(a, codes[tile], k);
#pragma unroll
        for (int j = 0; j < kGroups; ++j)
          skinny::multiply(part[tile][j], a[0], a[1], a[2], a[3], low(j), high(j));
      }
      if (kHasZero)
#pragma unroll
        for (int j = 0; j < kGroups; ++j)
          skinny::multiply(inputs[j], kOnes, kOnes, kOnes, kOnes, low(j), high(j));
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int place = unit * kTileOutputs + lane / 4 + 8 * r;
        const uint2 bits = scales(place, slot + tile * tile_bytes + kPieces * kPieceBytes);
        const Factors<kCode, kZero> factors(read, bits.x, bits.y, r);
#pragma unroll
        for (int j = 0; j < kGroups; ++j)
#pragma unroll
          for (int i = 2 * r; i < 2 * r + 2; ++i)
            factors.add(sums[tile].at[j][i], part[tile][j][i], inputs[j][i]);
      }
  }
}

}  // namespace tandem::tiles
