#pragma once
// The copying role of attention's backward pass, which keeps the stages of columns filled.
#include "kernels/attention/hopper/backward_shape.cuh"
#include "kernels/cuda/cp_async.cuh"
#include "kernels/cuda/tma.cuh"

namespace tandem::hopper {

/// Of [n_rows, Hq, d] in boxes of 64 queries, and of the pools' slots [slots, d] in boxes of a
/// page, all 64 elements wide.
struct BackwardMaps {
  CUtensorMap q, dout, k, v;
};

/// Begins a block: prepares its barriers and waits for the kernel before it.
/// returns  the thread's warp, uniform so that the compiler knows it
template <class Memory>
__device__ int begin_block(Memory& m, const BackwardMaps& maps) {
  if (threadIdx.x == 0) {
    cuda::tma_prefetch_map(maps.q);
    cuda::tma_prefetch_map(maps.dout);
    cuda::tma_prefetch_map(maps.k);
    cuda::tma_prefetch_map(maps.v);
    m.init_barriers();
  }
  __syncthreads();
  cuda::wait_for_previous();
  return __shfl_sync(cuda::kAllLanes, static_cast<int>(threadIdx.x / cuda::kWarp), 0);
}

/// Copies 64 vectors of both tensors of a side, from token `first` of the document: keys of the
/// block's KV head, or queries of `head`. Beyond the document lie zeros or anything else.
template <int kDim>
__device__ void copy_vectors(BackwardVectors<kDim>& to_0, BackwardVectors<kDim>& to_1,
                             const BackwardMaps& maps, cuda::Barrier& full,
                             const AttentionBackwardParams& p, const BackwardBlock& b, bool keys,
                             int head, int first) {
  if (keys) {
    // Rows of page -1 have negative coordinates, which the copy engine turns into zeros.
    const int page = first < b.n_rows ? __ldg(b.pages + first / kPageTokens) : -1;
    const int row = (page * p.n_kv_heads + b.kv_head) * kPageTokens;
#pragma unroll
    for (int c = 0; c < kDim / 64; ++c) {
      cuda::tma_load(to_0[c], maps.k, full, 64 * c, row);
      cuda::tma_load(to_1[c], maps.v, full, 64 * c, row);
    }
  } else {
#pragma unroll
    for (int c = 0; c < kDim / 64; ++c) {
      cuda::tma_load(to_0[c], maps.q, full, 64 * c, head, b.first_row + first);
      cuda::tma_load(to_1[c], maps.dout, full, 64 * c, head, b.first_row + first);
    }
  }
}

/// One thread: takes pieces of work and copies their rows. A piece is taken when the columns of the
/// one before are on their way: late, since who has taken a piece computes it, however long the one
/// before lasts. After the last one it leaves a piece that does not exist.
template <int kDim>
__device__ void take_pieces(BackwardMemory<kDim>& m, const AttentionBackwardParams& p,
                            const BackwardWork& work, const BackwardMaps& maps) {
  using Shape = BackwardShape<kDim>;
  auto number = static_cast<int>(blockIdx.x);
#pragma unroll 1
  for (unsigned n = 0;; ++n) {
    BackwardPiece& piece = m.pieces[n % 4];
    const BackwardBlock& b = piece.block = BackwardBlock(p, work, Shape::kRows, number);
    piece.tiles = ColumnTiles(p, b, Shape::kRows, Shape::kColumns);
    m.taken.arrive();
#pragma unroll 1
    for (int g = 0; g < Shape::kGroups; ++g) {
      const RowRing<kDim> rows{n * Shape::kGroups + static_cast<unsigned>(g)};
      auto& [first, second] = m.rows[rows.stage()];
      cuda::Barrier& full = m.rows_full[rows.stage()][g];
      m.rows_empty[rows.stage()].wait(rows.parity() ^ 1);
      full.arrive_expecting(b.exists ? 2 * Shape::kTileBytes : 0);
      if (b.exists)
        copy_vectors<kDim>(first, second, maps, full, p, b, b.of_keys, b.head, b.row + 64 * g);
    }
    if (!b.exists) return;
    m.columns_copied.wait(n % 2);
    number = static_cast<int>(gridDim.x) + atomicAdd(&work.counts->taken, 1);
  }
}

/// Calls each(block, head, first column, stage) for every step of every piece, once the stage is
/// empty.
template <int kDim, class Each>
__device__ void fill_stages(BackwardMemory<kDim>& m, const Each& each) {
  using Shape = BackwardShape<kDim>;
  StageRing<Shape::kStages> ring;
#pragma unroll 1
  for (unsigned n = 0;; ++n) {
    m.taken.wait(n % 2);
    const auto& [b, tiles] = m.piece(n);
    if (!b.exists) return;
    ColumnStep step{b.head, 0};
#pragma unroll 1
    for (int left = tiles.steps; left > 0; --left, step.next(tiles), ++ring.at) {
      m.empty[ring.stage()].wait(ring.parity() ^ 1);
      each(b, step.head, (tiles.first + step.tile) * Shape::kColumns, ring.stage());
    }
    if (threadIdx.x % cuda::kWarp == 0) m.columns_copied.arrive();
  }
}

/// One thread: copies the columns' vectors.
template <int kDim>
__device__ void copy_columns(BackwardMemory<kDim>& m, const AttentionBackwardParams& p,
                             const BackwardMaps& maps) {
  fill_stages<kDim>(m, [&](const BackwardBlock& b, int head, int first, int stage) {
    m.full[stage].arrive_expecting(2 * BackwardShape<kDim>::kTileBytes);
    copy_vectors<kDim>(m.columns[stage][0], m.columns[stage][1], maps, m.full[stage], p, b,
                       !b.of_keys, head, first);
  });
}

/// A warp: copies the numbers of columns that are queries.
template <int kDim>
__device__ void copy_stats(BackwardMemory<kDim>& m, const BackwardWork& work) {
  fill_stages<kDim>(m, [&](const BackwardBlock& b, int head, int first, int stage) {
    for (int i = threadIdx.x % cuda::kWarp; b.of_keys && i < BackwardShape<kDim>::kColumns;
         i += cuda::kWarp) {
      const int64_t from = b.stat_at(work, head) + first + i;
      const bool wanted = first + i < b.n_rows;
      cuda::copy_async<4>(cuda::shared_address(&m.lse[stage][i]), work.lse + from, wanted);
      cuda::copy_async<4>(cuda::shared_address(&m.sums[stage][i]), work.sums + from, wanted);
    }
    m.full[stage].arrive_after_copies();
  });
}

/// The whole call for d 256 (backward_wide.cu), which the body of backward.cu takes.
void backward_wide(const AttentionBackwardParams&, const AttentionBackwardLaunch&,
                   const BackwardMaps&, Stream);

}  // namespace tandem::hopper
