#pragma once
// How attention of few rows on a GPU divides its work, as far as the host settles it: by the shape
// of a call and the number of multiprocessors. Arithmetic alone, compiled in every build, so that a
// memory plan needs no GPU.
#include <stddef.h>

#include "kernels/attention/attention.h"

namespace tandem {

inline constexpr int kMostHeadDim = 256;                  // of attention on a GPU
inline constexpr int kMostChunks = 128;                   // of a pair
inline constexpr int kLargeParts = 16, kSmallParts = 16;  // of a kind: beyond, chunks grow longer
inline constexpr int kPlainQueries = 16;  // of a tile of the kernel for any head_dim

/// A pair's chunks: first the large ones, then the small ones; the last may be shorter.
struct PairChunks {
  int n_large, large_pages, n_small, small_pages;
  constexpr int count() const { return n_large + n_small; }
};

/// The part of the division that is fixed when a call is launched.
struct SplitRule {
  int group;         // heads of a KV head
  int tile_queries;  // queries of a tile
  int queries;       // most queries of a tile that occur
  int max_tiles;     // of a sequence
  int even_chunks;   // of a pair at least, so that no multiprocessor is left without one
  int short_chunks;  // the same of a pair up to short_pages
  int short_pages;
  int whole_pages;  // up to which a pair is not divided at all
  int least_pages;  // of one of these: joining states takes time too
  int full_pages;   // of a large chunk, unless there are too many
  int small_pages;  // below which a chunk costs more than it gives
  int small_16ths;  // of a pair's pages that go into small chunks, if it has enough
  int small_from;   // pages of a pair that has any
  int max_chunks;   // of any pair

  constexpr PairChunks divide(int n_pages) const {
    const int sixteenths = n_pages * small_16ths / 16;
    const bool has_small = n_pages >= small_from && sixteenths >= small_pages;
    const int in_large = n_pages - (has_small ? sixteenths : 0);
    int n_large = (in_large - 1) / full_pages + 1;
    n_large = n_large < kLargeParts ? n_large : kLargeParts;
    const int most_even = n_pages <= whole_pages ? 1 : n_pages / least_pages;
    const int wanted = n_pages <= short_pages ? short_chunks : even_chunks;
    const int even = wanted < most_even ? wanted : most_even;
    n_large = n_large > even ? n_large : even;
    const int large = in_large / n_large;
    if (in_large == n_pages || large < 2 * small_pages) {
      const int each = (n_pages + n_large - 1) / n_large;
      return {(n_pages + each - 1) / each, each, 0, 1};
    }
    const int rest = n_pages - n_large * large, part = (rest + kSmallParts - 1) / kSmallParts;
    const int small = part > small_pages ? part : small_pages;
    return {n_large, large, (rest + small - 1) / small, small};
  }
};

/// The sizes that decide a division, of a call or of bounds.
struct FewRowsShape {
  int n_seqs, n_heads, n_kv_heads, head_dim;
  int max_rows;    // of one sequence
  int max_tokens;  // of one sequence, new rows included
  bool plain;      // by the kernel for any head_dim and f32
  int multiprocessors;
  bool lists = false;   // keys of lists come before those of the range
  bool window = false;  // that bounds what a row sees
  bool scores = false;  // those of keys are wanted
};
SplitRule split_rule(const FewRowsShape&);
/// Bytes of the (m, l) of all chunks, which come first in the workspace, and of their o, which
/// follow. Scores of keys come last, where a pair has several tiles.
size_t few_rows_ml_bytes(const FewRowsShape&, const SplitRule&);
size_t few_rows_o_bytes(const FewRowsShape&, const SplitRule&);
/// Scores of a tile: whole pages.
constexpr int few_rows_score_stride(const FewRowsShape& x) {
  return (x.max_tokens + kPageTokens - 1) / kPageTokens * kPageTokens;
}

/// Bytes of workspace and of counters for any call within the bounds, of at most max_rows rows a
/// sequence or of max_tree_rows rows in all. They do not shrink when a bound on sequences, rows or
/// tokens grows.
size_t attention_few_rows_workspace_bytes(const AttentionBounds&);
size_t attention_few_rows_counter_bytes(const AttentionBounds&);

}  // namespace tandem
