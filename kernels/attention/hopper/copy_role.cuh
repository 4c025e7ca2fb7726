#pragma once
// The copying role: one thread walks over the block's tiles and keeps the stages of K and V filled.
#include "kernels/attention/hopper/tile_shape.cuh"
#include "kernels/cuda/tma.cuh"

namespace tandem::hopper {

/// The two pages of a tile of keys; -1 where there is none, which the copy engine turns into zeros:
/// rows of page -1 have negative coordinates.
struct PagePair {
  int at[2];
  __device__ PagePair(const int32_t* table, int max_pages, int key_tile) {
    for (int half = 0; half < 2; ++half) {
      const int page = 2 * key_tile + half;
      at[half] = page < max_pages ? __ldg(table + page) : -1;
    }
  }
};

/// Fills one stage with two pages of one head.
template <int kDim>
__device__ void copy_keys(__nv_bfloat16 (*to)[kKeys * 64], const CUtensorMap& map,
                          cuda::Barrier& full, const PagePair& pages, int kv_head, int n_kv_heads) {
  using Shape = TileShape<kDim>;
  full.arrive_expecting(Shape::kTileBytes);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = (pages.at[half] * n_kv_heads + kv_head) * kPageTokens;
#pragma unroll
    for (int c = 0; c < Shape::kColumns; ++c)
      cuda::tma_load(to[c] + half * kPageTokens * 64, map, full, 64 * c, row);
  }
}

/// Copies a tile's queries and tells what they are. Boxes of a group hold rows x heads in this
/// order.
template <int kDim>
__device__ void copy_queries(TileMemory<kDim>& m, const Work& work, const Packing& pack,
                             const CUtensorMap& map,
                             const Ring<TileShape<kDim>::kQueryStages>& ring) {
  using Shape = TileShape<kDim>;
  cuda::Barrier& full = m.q_full[ring.stage];
  m.q_empty[ring.stage].wait(ring.parity ^ 1);
  m.work[ring.stage] = work;
  if (work.keys.count <= 0) {
    full.arrive();
    return;
  }
  full.arrive_expecting(Shape::kQueryBytes);
#pragma unroll
  for (int g = 0; g < Shape::kGroups; ++g)
#pragma unroll
    for (int c = 0; c < Shape::kColumns; ++c)
      cuda::tma_load(m.q[ring.stage][g][c], map, full, 64 * c, work.tile.head_block << pack.shift,
                     work.s.first_row + work.tile.row + g * (64 >> pack.shift));
}

/// Maps: q [n_rows, Hq, d] in boxes of 64 queries, k and v [slots, d] in boxes of a page, all 64
/// columns wide. In the order in which the computing groups consume: Q, K 0, K 1, V 0, K 2, V 1,
/// ...
template <int kDim>
__device__ void copy_tiles(TileMemory<kDim>& m, const AttentionParams& p, const Packing& pack,
                           const CUtensorMap& q_map, const CUtensorMap& k_map,
                           const CUtensorMap& v_map) {
  using Shape = TileShape<kDim>;
  const int rows_a_tile = Shape::kQueries >> pack.shift;
  const int heads_a_kv_head = (p.n_heads / p.n_kv_heads) >> pack.shift;  // head blocks, that is
  TileWalk walk(pack, m.tiles_before, p.n_seqs, rows_a_tile);
  Ring<Shape::kQueryStages> q_ring;
  Ring<Shape::kStages> k_ring, v_ring;
  Work work;
  while (walk.next(work.tile)) {
    work.s = sequence_of(p, work.tile.seq);
    work.keys = key_tiles(p, work.s, work.tile.row, rows_a_tile);
    copy_queries(m, work, pack, q_map, q_ring);
    q_ring.step();
    if (work.keys.count == 0) continue;
    const int kv_head = work.tile.head_block / heads_a_kv_head;
    const auto copy_k = [&](const PagePair& pages) {
      m.k_empty[k_ring.stage].wait(k_ring.parity ^ 1);
      copy_keys<kDim>(m.k[k_ring.stage], k_map, m.k_full[k_ring.stage], pages, kv_head,
                      p.n_kv_heads);
      k_ring.step();
    };
    const auto copy_v = [&](const PagePair& pages) {
      m.v_empty[v_ring.stage].wait(v_ring.parity ^ 1);
      copy_keys<kDim>(m.v[v_ring.stage], v_map, m.v_full[v_ring.stage], pages, kv_head,
                      p.n_kv_heads);
      v_ring.step();
    };
    PagePair previous(work.s.pages, p.max_pages, work.keys[0]);
    copy_k(previous);
    for (int i = 1; i < work.keys.count; ++i) {
      const PagePair pages(work.s.pages, p.max_pages, work.keys[i]);
      copy_k(pages);
      copy_v(previous);
      previous = pages;
    }
    copy_v(previous);
  }
  work.keys.count = kNoMoreWork;
  copy_queries(m, work, pack, q_map, q_ring);
}

}  // namespace tandem::hopper
