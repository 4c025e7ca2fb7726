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

/// All vectors that a block reads, by one thread.
template <int kDim>
__device__ void copy_backward(BackwardMemory<kDim>& m, const AttentionBackwardParams& p,
                              const BackwardBlock& b, const BackwardMaps& maps) {
  using Shape = BackwardShape<kDim>;
  m.rows_full.arrive_expecting(2 * Shape::kGroups * Shape::kTileBytes);
#pragma unroll 1
  for (int g = 0; g < Shape::kGroups; ++g)
    copy_vectors<kDim>(m.rows[0][g], m.rows[1][g], maps, m.rows_full, p, b, b.of_keys, b.head,
                       b.row + 64 * g);
  const ColumnTiles tiles(p, b, Shape::kRows, Shape::kColumns);
  ColumnStep step{b.head, 0};
#pragma unroll 1
  for (int n = 0; n < tiles.steps; ++n, step.next(tiles)) {
    const int stage = n % Shape::kStages;
    m.empty[stage].wait(static_cast<unsigned>(n / Shape::kStages % 2) ^ 1);
    m.full[stage].arrive_expecting(2 * Shape::kTileBytes);
    copy_vectors<kDim>(m.columns[stage][0], m.columns[stage][1], maps, m.full[stage], p, b,
                       !b.of_keys, step.head, (tiles.first + step.tile) * Shape::kColumns);
  }
}

/// The numbers of columns that are queries, by a warp.
template <int kDim>
__device__ void copy_stats(BackwardMemory<kDim>& m, const AttentionBackwardParams& p,
                           const BackwardWork& work, const BackwardBlock& b) {
  using Shape = BackwardShape<kDim>;
  const ColumnTiles tiles(p, b, Shape::kRows, Shape::kColumns);
  ColumnStep step{b.head, 0};
#pragma unroll 1
  for (int n = 0; n < tiles.steps; ++n, step.next(tiles)) {
    const int stage = n % Shape::kStages, first = (tiles.first + step.tile) * Shape::kColumns;
    const int64_t from = b.stat_at(work, step.head) + first;
    m.empty[stage].wait(static_cast<unsigned>(n / Shape::kStages % 2) ^ 1);
#pragma unroll
    for (int i = threadIdx.x % cuda::kWarp; i < Shape::kColumns; i += cuda::kWarp) {
      const bool wanted = first + i < b.n_rows;
      cuda::copy_async<4>(cuda::shared_address(&m.lse[stage][i]), work.lse + from + i, wanted);
      cuda::copy_async<4>(cuda::shared_address(&m.sums[stage][i]), work.sums + from + i, wanted);
    }
    m.full[stage].arrive_after_copies();
  }
}

}  // namespace tandem::hopper
