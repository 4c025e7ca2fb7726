#pragma once
// The copying role: one thread walks over the block's tiles and keeps the stages of K and V filled.
#include "kernels/attention/hopper/tile_shape.cuh"
#include "kernels/cuda/tma.cuh"

namespace tandem::hopper {

/// The pages of a tile of keys; -1 where there is none, which the copy engine turns into zeros:
/// rows of page -1 have negative coordinates.
template <int kPages>
struct TilePages {
  int at[kPages];
  __device__ TilePages(const int32_t* table, int max_pages, int key_tile) {
    for (int half = 0; half < kPages; ++half) {
      const int page = kPages * key_tile + half;
      at[half] = page < max_pages ? __ldg(table + page) : -1;
    }
  }
};

/// Fills one stage with a tile's pages of one head.
template <int kDim>
__device__ void copy_keys(__nv_bfloat16 (*to)[TileShape<kDim>::kKeys * 64], const CUtensorMap& map,
                          cuda::Barrier& full, const TilePages<TileShape<kDim>::kPages>& pages,
                          int kv_head, int n_kv_heads) {
  using Shape = TileShape<kDim>;
  full.arrive_expecting(Shape::kTileBytes);
#pragma unroll
  for (int half = 0; half < Shape::kPages; ++half) {
    const int row = (pages.at[half] * n_kv_heads + kv_head) * kPageTokens;
#pragma unroll
    for (int c = 0; c < Shape::kColumns; ++c)
      cuda::tma_load(to[c] + half * kPageTokens * 64, map, full, 64 * c, row);
  }
}

/// Maps: q [n_rows, Hq, d] in boxes of 64 queries, k and v [slots, d] in boxes of a page, all 64
/// columns wide. In the order in which the computing groups consume: K 0, Q, K 1, V 0, K 2, V 1,
/// ...
template <int kDim>
__device__ void copy_tiles(TileMemory<kDim>& m, const AttentionParams& p, const Packing& pack,
                           const CUtensorMap& q_map, const CUtensorMap& k_map,
                           const CUtensorMap& v_map) {
  using Shape = TileShape<kDim>;
  using Pages = TilePages<Shape::kPages>;
  const int rows_a_tile = Shape::kQueries >> pack.shift;
  const int heads_a_kv_head = (p.n_heads / p.n_kv_heads) >> pack.shift;  // head blocks, that is
  TileWalk walk(pack, m.tiles_before, p.n_seqs, rows_a_tile);
  Ring<Shape::kStages> k_ring, v_ring;
  unsigned q_parity = 1;  // an empty place for Q needs no wait
  Tile tile;
  while (walk.next(tile)) {
    const Sequence s = sequence_of(p, tile.seq);
    const KeyTiles<Shape::kKeys> keys(p, s, tile.row, rows_a_tile);
    if (keys.count == 0) continue;
    const int kv_head = tile.head_block / heads_a_kv_head;
    Pages next(s.pages, p.max_pages, keys[0]), previous = next;
    for (int i = 0; i < keys.count; ++i) {
      const Pages pages = next;
      // Asked for a turn ahead, the page table's latency never holds up a copy.
      if (i + 1 < keys.count) next = Pages(s.pages, p.max_pages, keys[i + 1]);
      m.k_empty[k_ring.stage].wait(k_ring.parity ^ 1);
      copy_keys<kDim>(m.k[k_ring.stage], k_map, m.k_full[k_ring.stage], pages, kv_head,
                      p.n_kv_heads);
      k_ring.step();
      if (i == 0) {
#pragma unroll
        for (int g = 0; g < Shape::kGroups; ++g) {
          m.q_empty[g].wait(q_parity);
          m.q_full[g].arrive_expecting(Shape::kQueryBytes);
#pragma unroll
          for (int c = 0; c < Shape::kColumns; ++c)
            cuda::tma_load(m.q[g][c], q_map, m.q_full[g], 64 * c, tile.head_block << pack.shift,
                           s.first_row + tile.row + g * (64 >> pack.shift));
        }
        q_parity ^= 1;
      } else {
        m.v_empty[v_ring.stage].wait(v_ring.parity ^ 1);
        copy_keys<kDim>(m.v[v_ring.stage], v_map, m.v_full[v_ring.stage], previous, kv_head,
                        p.n_kv_heads);
        v_ring.step();
      }
      previous = pages;
    }
    m.v_empty[v_ring.stage].wait(v_ring.parity ^ 1);
    copy_keys<kDim>(m.v[v_ring.stage], v_map, m.v_full[v_ring.stage], previous, kv_head,
                    p.n_kv_heads);
    v_ring.step();
  }
}

}  // namespace tandem::hopper
