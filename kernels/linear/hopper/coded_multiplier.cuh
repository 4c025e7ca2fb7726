#pragma once
// The multiplying warps' part of a product of codes.
#include "kernels/linear/code_tiles.cuh"
#include "kernels/linear/hopper/coded_share.cuh"

namespace tandem::coded {

/// A warp's part of a slice.
struct Slice {
  const uint8_t *codes, *scales;  // its tile in the first 64 outputs
  int apart, scales_apart;        // bytes to those of the other 64
  unsigned x;                     // shared address
  const float* sums;              // sums of x, [units][x_rows]
  int x_rows;
};

/// The sums of four warps: two blocks of 64 outputs, kRows rows of x. Units of the two
/// blocks take turns. A unit's steps are one or two batches of products. While a batch is under
/// way, the unit before is added up and the next batch is decoded.
template <Code kCode, int kUnit, bool kMinimum, int kRows>
struct Multiplier {
  using Exact = tiles::Exact<kCode>;
  static constexpr int kSums = kRows / 2;  // a thread's, as wgmma's D
  static constexpr int kPieces = kCode == Code::i4 ? 2 : 4, kUnits = kTileInputs / kUnit;
  static constexpr int kSteps = kUnit / 16, kBatch = kSteps < 4 ? kSteps : 4;
  static constexpr int kUnitBatches = kSteps / kBatch;
  static constexpr int kBatches = kBlocksOf64 * kUnits * kUnitBatches;
  static constexpr int kZerosAt = kUnits * kTileOutputs * (kCode == Code::fp8 ? 4 : 2);

  const tiles::Reader<kCode, kMinimum> read;
  float sums[kBlocksOf64][kSums] = {}, part[kBlocksOf64][kSums] = {};
  float scale[kBlocksOf64][2] = {}, least[kBlocksOf64][2] = {};
  unsigned missing[kBlocksOf64][2];
  const float* inputs[kBlocksOf64];  // sums of x in the unit
  uint32_t a[2][kBatch][4];          // fragments of two batches
  uint4 pieces[kPieces];             // codes that come next
  unsigned scale_bits[2], least_bits[2], zero_bits[2] = {};

  __device__ static constexpr int block_of(int batch) { return batch / kUnitBatches % kBlocksOf64; }
  __device__ static constexpr int unit_of(int batch) { return batch / kUnitBatches / kBlocksOf64; }
  __device__ static constexpr int step_of(int batch) {
    return unit_of(batch) * kSteps + batch % kUnitBatches * kBatch;
  }

  /// Reads what decode takes.
  __device__ __forceinline__ void fetch(const Slice& s, int batch) {
    const int r = block_of(batch), lane = cuda::lane_of(), first = step_of(batch);
    const uint8_t* const codes = s.codes + r * s.apart;
#pragma unroll
    for (int i = first * kPieces / 8; i <= (first + kBatch - 1) * kPieces / 8; ++i)
      pieces[i] = *reinterpret_cast<const uint4*>(codes + i * kPieceBytes + lane * 16);
    if (batch % kUnitBatches != 0) return;
    const uint8_t* const at = s.scales + r * s.scales_apart;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int place = unit_of(batch) * kTileOutputs + lane / 4 + 8 * h;
      scale_bits[h] = read.scale_bits(at, place);
      if (kMinimum) least_bits[h] = read.scale_bits(at + kZerosAt, place);
      if (!kMinimum && kCode != Code::fp8) zero_bits[h] = at[kZerosAt + place];
    }
  }

  __device__ __forceinline__ void decode(const Slice& s, int batch) {
    const int r = block_of(batch);
    if (batch % kUnitBatches == 0) {
      inputs[r] = s.sums + unit_of(batch) * s.x_rows;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        scale[r][h] = read.scale(scale_bits[h]) * Exact::inverse(h);
        if (kMinimum) least[r][h] = read.scale(least_bits[h]);
        missing[r][h] = Exact::missing(read.zero(zero_bits[h]), h);
      }
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      uint32_t(&fragment)[4] = a[batch % 2][k];
      tiles::Decoder<kCode>::fragment(fragment, pieces, step_of(batch) + k);
#pragma unroll
      for (int j = 0; j < 4; ++j) fragment[j] = Exact::pair(fragment[j], missing[r][j % 2]);
    }
  }

  /// Puts the products of a batch under way.
  __device__ __forceinline__ void start(const Slice& s, int batch) {
    const int r = block_of(batch), first = step_of(batch);
    cuda::wgmma_begin();
#pragma unroll
    for (int k = 0; k < kBatch; ++k)
      cuda::wgmma_rs_nk(part[r], a[batch % 2][k], operand(s.x, first + k, s.x_rows),
                        batch % kUnitBatches + k > 0);
    cuda::wgmma_commit();
  }

  /// Adds up a unit, whose products are finished.
  __device__ __forceinline__ void fold(int r) {
    cuda::wgmma_done(part[r]);
#pragma unroll
    for (int j = 0; j < kSums; ++j) sums[r][j] = fmaf(scale[r][j % 4 / 2], part[r][j], sums[r][j]);
    if constexpr (kMinimum) {
      const float* const x = inputs[r] + 2 * (threadIdx.x % 4);
#pragma unroll
      for (int j = 0; j < kSums; ++j)
        sums[r][j] = fmaf(least[r][j % 4 / 2], x[j / 4 * 8 + j % 2], sums[r][j]);
    }
  }

  /// Multiplies a slice whose first batch is decoded, and adds up all units but its last.
  /// release  called when the slice before is no longer read
  /// next     waits for the next slice, and fetches and decodes its first batch
  template <class Release, class Next>
  __device__ __forceinline__ void multiply(const Slice& s, const Release& release,
                                           const Next& next) {
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch) {
      if (batch + 1 < kBatches) fetch(s, batch + 1);
      start(s, batch);
      cuda::wgmma_wait<1>();
      if (batch % kUnitBatches == 0) fold(1 - block_of(batch));
      if (batch == 0) release();
      if (batch + 1 < kBatches)
        decode(s, batch + 1);
      else
        next();
    }
    // The assembler would let nothing overlap if products were under way from turn to turn.
    cuda::wgmma_wait<0>();
  }
};

}  // namespace tandem::coded
