#pragma once
// A block's share of a product of codes, and the warps that fill the ring in shared memory.
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/linear/coded_linear.h"
#include "kernels/linear/skinny_linear.cuh"

namespace tandem::coded {

inline constexpr int kBlocksOf64 = 2;           // blocks of outputs
inline constexpr int kTiles = kBlocksOf64 * 4;  // rows of tiles of a block
// The first four warps multiply, one of the others copies, and one sums up x.
inline constexpr int kMultiply = cuda::kWarpgroup, kThreads = 2 * cuda::kWarpgroup;
inline constexpr int kCopyingWarp = kMultiply / cuda::kWarp, kSummingWarp = kCopyingWarp + 1;
inline constexpr int kMostStages = 16;
inline constexpr int kChunk = 64;  // columns of a swizzled row

/// A block's share of the work and of shared memory.
struct Plan {
  int parts = 0;   // blocks of a cluster, each with some columns
  int passes = 0;  // over rows of x
  int stages = 0;  // in the ring
  int x_rows = 0;  // in a pass, a multiple of 8
  int tile_bytes = 0;
  int codes_pitch = 0, scales_pitch = 0;  // from a tile's codes, and scales, to the next's
  int scales_at = 0;                      // scales of the first tile of a stage, from its codes on
  int pitch = 0;                          // from one output's sums to the next's
  int x_at = 0, tiles_at = 0, inputs_at = 0, bytes = 0;  // places in shared memory
};

struct Barriers {
  cuda::Barrier full[kMostStages], empty[kMostStages], summed[kMostStages];
  cuda::Barrier sums;  // the cluster's sums for this block have come
};

/// A block's work.
struct Share {
  int part, tile, row;  // part of the columns; first row of tiles, first row of x
  int rows, tiles;      // rows of x; rows of tiles
  int begin, end;       // tiles of a row

  __device__ Share(const CodedLinearParams& p, const Plan& plan, int most_rows) {
    const int block = static_cast<int>(blockIdx.x), across = p.w.across();
    part = block % plan.parts;
    row = block / plan.parts % plan.passes * most_rows;
    tile = block / plan.parts / plan.passes * kTiles;
    rows = min(p.product.rows - row, most_rows);
    tiles = min(p.w.down() - tile, kTiles);
    begin = across * part / plan.parts;
    end = across * (part + 1) / plan.parts;
  }
};

/// wgmma's right operand: columns 16 k to 16 k + 15 of a slice of x, two boxes of the copy engine.
__device__ inline uint64_t operand(unsigned slice, int k, int x_rows) {
  return cuda::wgmma_operand(slice, 0) +
         static_cast<uint64_t>(2 * (k % 4) + k / 4 * (x_rows * kChunk * 2 / 16));
}

/// Descriptors of weights as rows of 8-byte numbers, and of x.
struct Maps {
  CUtensorMap tiles;   // or their codes
  CUtensorMap scales;  // if a box cannot hold a tile
  CUtensorMap x;
};

/// The copying thread.
struct Copier {
  const CodedLinearParams& p;
  const Maps& maps;
  const Share& share;
  const Plan& plan;
  unsigned char* shared;
  Barriers* barriers;
  uint64_t policy = cuda::read_once_policy();

  __device__ void tiles(int stage, int step) const {
    cuda::Barrier& full = barriers->full[stage];
    const int rows = min(p.product.rows, plan.x_rows);
    full.arrive_expecting(static_cast<unsigned>(kTiles * plan.tile_bytes + 2 * rows * kChunk * 2));
    const int first = (share.begin + step) * (plan.tile_bytes / 8);
    unsigned char* const to = shared + plan.tiles_at + stage * kTiles * plan.tile_bytes;
    cuda::tma_load(to, maps.tiles, full, first, share.tile, policy);
    if (plan.codes_pitch < plan.tile_bytes)
      cuda::tma_load(to + plan.scales_at, maps.scales, full, first + plan.codes_pitch / 8,
                     share.tile, policy);
  }
  __device__ void input(int stage, int step) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      cuda::tma_load(shared + plan.x_at + (2 * stage + half) * plan.x_rows * kChunk * 2, maps.x,
                     barriers->full[stage], (share.begin + step) * kTileInputs + half * kChunk,
                     share.row);
  }
  __device__ int first() const { return min(share.end - share.begin, plan.stages); }
  __device__ void begin() const {
    for (int i = 0; i < first(); ++i) tiles(i, i);
  }
  __device__ void run() const {
    for (int i = 0; i < first(); ++i) input(i, i);
    cuda::Turn turn;
    for (int i = first(); i < share.end - share.begin; ++i, turn.advance(plan.stages)) {
      barriers->empty[turn.stage].wait(turn.parity);
      tiles(turn.stage, i);
      input(turn.stage, i);
    }
  }
};

/// The warp that sums up x in each unit: products with ones.
template <int kUnit>
__device__ void sum_inputs(const Share& share, const Plan& plan, unsigned char* shared,
                           Barriers* barriers) {
  constexpr int kUnits = kTileInputs / kUnit;
  constexpr unsigned kOnes = 0x3f803f80u;
  const int lane = cuda::lane_of(), g = lane / 4, t = lane % 4;
  const int box_bytes = plan.x_rows * kChunk * 2;
  cuda::Turn turn;
  for (int i = share.begin; i < share.end; ++i, turn.advance(plan.stages)) {
    const unsigned char* const slice = shared + plan.x_at + 2 * turn.stage * box_bytes;
    float* const to =
        reinterpret_cast<float*>(shared + plan.inputs_at) + turn.stage * kUnits * plan.x_rows;
    barriers->full[turn.stage].wait(turn.parity);
    for (int j = 0; j < plan.x_rows / 8; ++j)
#pragma unroll 1
      for (int u = 0; u < kUnits; ++u) {
        float sum[4] = {};
#pragma unroll
        for (int step = 0; step < kUnit / 16; ++step) {
          const int k = u * kUnit / 16 + step;
          const unsigned char* const at = slice + k / 4 * box_bytes + (8 * j + g) * kChunk * 2;
          const auto two = [&](int eight) {
            return *reinterpret_cast<const unsigned*>(at + (eight ^ g) * 16 + 4 * t);
          };
          skinny::multiply(sum, kOnes, kOnes, kOnes, kOnes, two(k % 4 * 2), two(k % 4 * 2 + 1));
        }
        if (g == 0)
          *reinterpret_cast<float2*>(to + u * plan.x_rows + 8 * j + 2 * t) = {sum[0], sum[1]};
      }
    __syncwarp();
    if (lane == 0) barriers->summed[turn.stage].arrive();
  }
}

}  // namespace tandem::coded
