#pragma once
// What the kernels of attention's backward pass share. There are two kinds of blocks: one has a
// tile of keys and meets the queries that see them, for dk and dv; one has a tile of queries and
// meets the keys that they see, for dq. Both are rows that stay and columns that pass by, so that
// one body serves both.
#include "kernels/attention/attention_backward_plan.h"
#include "kernels/cuda/launch.cuh"

namespace tandem {

/// The result of preparing a call.
struct BackwardWork {
  const float *lse, *sums;  // as in BackwardWorkspace
  BackwardCounts* counts;
  const BackwardTile* tiles;
  int stat_rows;   // of a head in lse and sums
  int most_tiles;  // bound of counts->tiles

  /// Bound of the pieces of work: a tile of keys and a KV head each, then a tile of queries and a
  /// head each, which take less long.
  unsigned pieces(const AttentionBackwardParams& p) const {
    return static_cast<unsigned>(most_tiles) * static_cast<unsigned>(p.n_kv_heads + p.n_heads);
  }
};

/// Fills the workspace, with a list of tiles of `tile_rows` rows.
BackwardWork prepare_backward(const AttentionBackwardParams&, const AttentionBackwardLaunch&,
                              int tile_rows, Stream);

/// Which pairs count: query i sees key j.
struct CausalWindow {
  int n_rows, window;

  __device__ bool pair(int i, int j) const {
    return j <= i && i < n_rows && (window == 0 || i - j < window);
  }
  /// The first key that query i sees, and the first after those.
  __device__ int2 keys(int i) const {
    return {window == 0 ? 0 : max(0, i - window + 1), i < n_rows ? i + 1 : 0};
  }
  /// The first query that sees key j, and the first after those.
  __device__ int2 queries(int j) const {
    return {j, window == 0 || window > n_rows - j ? n_rows : j + window};
  }
  /// Of queries [i, i + n_i) and keys [j, j + n_j).
  __device__ bool all(int i, int n_i, int j, int n_j) const {
    return j + n_j <= i + 1 && i + n_i <= n_rows && (window == 0 || i + n_i - 1 - j < window);
  }
  __device__ bool none(int i, int n_i, int j, int n_j) const {
    return i >= n_rows || j >= n_rows || i + n_i <= j ||
           (window != 0 && i - (j + n_j - 1) >= window);
  }
};

/// A piece of work.
struct BackwardBlock {
  bool exists, of_keys;
  int first_row, n_rows;  // of the document
  int row;                // of the document, the tile's first
  int kv_head, head;      // head: the first that the block meets
  const int32_t* pages;   // of the document

  __device__ BackwardBlock(const AttentionBackwardParams& p, const BackwardWork& work,
                           int tile_rows, int number) {
    const int of_all_keys = work.counts->tiles * p.n_kv_heads;
    of_keys = number < of_all_keys;
    if (!of_keys) number -= of_all_keys;
    const int heads = of_keys ? p.n_kv_heads : p.n_heads, group = p.n_heads / p.n_kv_heads;
    const int own = number % heads;
    exists = number / heads < work.counts->tiles;
    if (!exists) return;
    const BackwardTile tile = work.tiles[number / heads];
    first_row = p.row_begin[tile.seq];
    n_rows = p.row_begin[tile.seq + 1] - first_row;
    // The first tiles of keys and the last ones of queries meet the most.
    const int last = (n_rows - 1) / tile_rows;
    row = (of_keys ? last - tile.rank : tile.rank) * tile_rows;
    kv_head = of_keys ? own : own / group;
    head = of_keys ? own * group : own;
    pages = p.page_table + static_cast<int64_t>(p.slot[tile.seq]) * p.max_pages;
  }

  __device__ CausalWindow rule(const AttentionBackwardParams& p) const {
    return {n_rows, p.window};
  }
  /// A token's vector of K or V in its pool, in vectors of d.
  __device__ int64_t key_at(const AttentionBackwardParams& p, int token) const {
    const int64_t page = __ldg(pages + token / kPageTokens);
    return (page * p.n_kv_heads + kv_head) * kPageTokens + token % kPageTokens;
  }
  /// The same of a query in q and dout.
  __device__ int64_t query_at(const AttentionBackwardParams& p, int of_head, int query) const {
    return static_cast<int64_t>(first_row + query) * p.n_heads + of_head;
  }
  /// Where a row's gradient of q (dk for keys) goes; dv is n_kv_heads vectors further.
  __device__ int64_t gradient_at(const AttentionBackwardParams& p, int of_row) const {
    return static_cast<int64_t>(first_row + of_row) * (p.n_heads + 2 * p.n_kv_heads) +
           (of_keys ? p.n_heads + kv_head : head);
  }
  /// Where the numbers of a head's queries begin in lse and sums.
  __device__ int64_t stat_at(const BackwardWork& work, int of_head) const {
    return static_cast<int64_t>(of_head) * work.stat_rows + first_row;
  }
};

/// The tiles of columns that a block meets: for keys those of one head of the group after another.
struct ColumnTiles {
  int first, count;  // of a head
  int steps;         // of all heads

  __device__ ColumnTiles(const AttentionBackwardParams& p, const BackwardBlock& b, int tile_rows,
                         int tile_columns) {
    const int end_row = min(b.row + tile_rows, b.n_rows);
    const bool whole = p.window == 0 || p.window >= b.n_rows;
    const int begin = b.of_keys ? b.row : whole ? 0 : max(0, b.row - p.window + 1);
    const int end = !b.of_keys ? end_row : whole ? b.n_rows : min(b.n_rows, end_row - 1 + p.window);
    first = begin / tile_columns;
    count = (end + tile_columns - 1) / tile_columns - first;
    steps = count * (b.of_keys ? p.n_heads / p.n_kv_heads : 1);
  }
};

/// A step of a block: columns [column, ...) of a head.
struct ColumnStep {
  int head, tile;  // of the head's tiles

  __device__ void next(const ColumnTiles& tiles) {
    if (++tile < tiles.count) return;
    tile = 0;
    ++head;
  }
};

}  // namespace tandem

// The portable bodies by dtype.
namespace tandem::portable {

void backward_f32(const AttentionBackwardParams&, const AttentionBackwardLaunch&, Stream);
void backward_bf16(const AttentionBackwardParams&, const AttentionBackwardLaunch&, Stream);

}  // namespace tandem::portable
