#pragma once
// The copying role of attention's backward pass with d 256, which is one warp's. Its first lane
// asks for tiles, all lanes bring the numbers of queries.
#include "kernels/attention/hopper/backward_copy.cuh"
#include "kernels/attention/hopper/backward_wide_shape.cuh"

namespace tandem::hopper {

/// Copies 64 vectors of a pool, from token `first` of the document on.
__device__ inline void copy_keys(WideTile& to, const CUtensorMap& pool, cuda::Barrier& full,
                                 const AttentionBackwardParams& p, const BackwardBlock& b,
                                 int first) {
  const int page = __ldg(b.pages + first / kPageTokens);
  const int row = (page * p.n_kv_heads + b.kv_head) * kPageTokens;
#pragma unroll
  for (int c = 0; c < 4; ++c) cuda::tma_load(to[c], pool, full, 64 * c, row);
}
/// Copies 64 vectors of a head's q or dout. Beyond the document lie zeros or anything else.
__device__ inline void copy_queries(WideTile& to, const CUtensorMap& queries, cuda::Barrier& full,
                                    const BackwardBlock& b, int head, int first) {
#pragma unroll
  for (int c = 0; c < 4; ++c)
    cuda::tma_load(to[c], queries, full, 64 * c, head, b.first_row + first);
}

/// Pieces by number, as one warp takes them. First come those of keys, two for each tile of the
/// list, then those of queries.
class WidePieces {
 public:
  __device__ WidePieces(WideMemory& m, const AttentionBackwardParams& p, const BackwardWork& work)
      : m_(m), p_(p), work_(work), number_(static_cast<int>(blockIdx.x)) {}

  /// Describes the piece of the number held, if it is of this kind, as the n-th; else one that does
  /// not exist. Pieces of keys beyond a document are passed over.
  __device__ bool describe(unsigned n, bool of_keys) {
    constexpr int kRows = WideShape::kTileRows;
    BackwardPiece& piece = m_.pieces[n % 4];
    for (;;) {
      bool beyond = false;
      if (lane() == 0) {
        const int keys = work_.counts->tiles * p_.n_kv_heads;
        const bool is_of_keys = number_ < 2 * keys;
        BackwardBlock& b = piece.block =
            BackwardBlock(p_, work_, kRows, is_of_keys ? number_ / 2 : number_ - keys);
        if (of_keys && !is_of_keys) b.exists = false;
        if (b.exists) {
          if (of_keys) b.row += number_ % 2 * WideShape::kVectors;
          beyond = b.row >= b.n_rows;
          if (!beyond)
            piece.tiles =
                ColumnTiles(p_, b, of_keys ? WideShape::kVectors : kRows, WideShape::kVectors);
        }
      }
      __syncwarp();
      if (!__shfl_sync(cuda::kAllLanes, static_cast<int>(beyond), 0)) return piece.block.exists;
      take();
    }
  }
  __device__ void take() {
    int taken = 0;
    if (lane() == 0) taken = atomicAdd(&work_.counts->taken, 1);
    number_ = static_cast<int>(gridDim.x) + __shfl_sync(cuda::kAllLanes, taken, 0);
  }
  __device__ static int lane() { return static_cast<int>(threadIdx.x % cuda::kWarp); }

 private:
  WideMemory& m_;
  const AttentionBackwardParams& p_;
  const BackwardWork& work_;
  int number_;
};

/// Fills the tiles of the pieces of keys, and one that does not exist after the last.
__device__ inline void load_of_keys(WideMemory& m, const AttentionBackwardParams& p,
                                    const BackwardWork& work, const BackwardMaps& maps,
                                    WidePieces& pieces) {
  using Shape = WideShape;
  auto& barriers = m.of_keys;
  const bool leads = WidePieces::lane() == 0;
  StageRing<Shape::kStages> ring;
#pragma unroll 1
  for (unsigned n = 0;; ++n) {
    const bool exists = pieces.describe(n, true);
    const auto& [b, tiles] = m.piece(n);
    barriers.k.empty[0].wait(n % 2 ^ 1);
    if (leads) {
      barriers.k.full[0].arrive_expecting(exists ? Shape::kTileBytes : 0);
      if (exists) copy_keys(m.tiles[0], maps.k, barriers.k.full[0], p, b, b.row);
    }
    barriers.v.empty[0].wait(n % 2 ^ 1);
    if (leads) {
      barriers.v.full[0].arrive_expecting(exists ? Shape::kTileBytes : 0);
      if (exists) copy_keys(m.tiles[1], maps.v, barriers.v.full[0], p, b, b.row);
    }
    if (!exists) return;
    ColumnStep step{b.head, 0};
    // Copies a step's vectors and numbers of one kind.
    const auto copy = [&](TileBarriers<Shape::kStages>& of, const CUtensorMap& map, int kind,
                          const float* numbers, float(&to)[Shape::kStats][Shape::kVectors]) {
      const int stage = ring.stage(), first = (tiles.first + step.tile) * Shape::kVectors;
      of.empty[stage].wait(ring.parity() ^ 1);
      const float* from = numbers + b.stat_at(work, step.head) + first;
#pragma unroll
      for (int i = WidePieces::lane(); i < Shape::kVectors; i += cuda::kWarp)
        cuda::copy_async<4>(cuda::shared_address(&to[ring.at % Shape::kStats][i]), from + i,
                            first + i < b.n_rows);
      of.full[stage].arrive_after_copies();
      if (!leads) return;
      of.full[stage].arrive_expecting(Shape::kTileBytes);
      copy_queries(m.tiles[2 + 2 * stage + kind], map, of.full[stage], b, step.head, first);
    };
#pragma unroll 1
    for (int left = tiles.steps; left > 0; --left, step.next(tiles), ++ring.at) {
      copy(barriers.q, maps.q, 0, work.lse, m.lse);
      copy(barriers.dout, maps.dout, 1, work.sums, m.sums);
    }
    pieces.take();
  }
}

/// Fills the tiles of the pieces of queries, and one that does not exist after the last.
__device__ inline void load_of_queries(WideMemory& m, const AttentionBackwardParams& p,
                                       const BackwardMaps& maps, WidePieces& pieces) {
  using Shape = WideShape;
  auto& barriers = m.of_queries;
  const bool leads = WidePieces::lane() == 0;
  StageRing<Shape::kStages> ring;
#pragma unroll 1
  for (unsigned n = 0;; ++n) {
    const bool exists = pieces.describe(n, false);
    const auto& [b, tiles] = m.piece(n);
#pragma unroll 1
    for (int g = 0; g < Shape::kGroups; ++g) {
      cuda::Barrier& full = barriers.rows.full[g];
      barriers.rows.empty[g].wait(n % 2 ^ 1);
      if (!leads) continue;
      full.arrive_expecting(exists ? 2 * Shape::kTileBytes : 0);
      if (!exists) continue;
      const int first = b.row + g * Shape::kVectors;
      copy_queries(m.tiles[2 * g], maps.q, full, b, b.head, first);
      copy_queries(m.tiles[2 * g + 1], maps.dout, full, b, b.head, first);
    }
    if (!exists) return;
#pragma unroll 1
    for (int tile = 0; tile < tiles.steps; ++tile, ++ring.at) {
      const int stage = ring.stage(), first = (tiles.first + tile) * Shape::kVectors;
      barriers.k.empty[stage].wait(ring.parity() ^ 1);
      if (leads) {
        barriers.k.full[stage].arrive_expecting(Shape::kTileBytes);
        copy_keys(m.tiles[4 + stage], maps.k, barriers.k.full[stage], p, b, first);
      }
      barriers.v.empty[0].wait(ring.at % 2 ^ 1);
      if (leads) {
        barriers.v.full[0].arrive_expecting(Shape::kTileBytes);
        copy_keys(m.tiles[6], maps.v, barriers.v.full[0], p, b, first);
      }
    }
    pieces.take();
  }
}

}  // namespace tandem::hopper
