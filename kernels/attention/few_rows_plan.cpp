#include "kernels/attention/few_rows_plan.h"

#include <algorithm>
#include <climits>

#include "kernels/attention/attention.h"

namespace tandem {
namespace {

constexpr size_t kAlign = 256;

int divide_up(int a, int b) { return (a + b - 1) / b; }

size_t pairs(const FewRowsShape& x, const SplitRule& r) {
  return static_cast<size_t>(x.n_seqs) * static_cast<size_t>(x.n_kv_heads) *
         static_cast<size_t>(r.max_tiles);
}
size_t states(const FewRowsShape& x, const SplitRule& r) {
  return pairs(x, r) * static_cast<size_t>(r.max_chunks) * static_cast<size_t>(r.queries);
}
size_t whole_units(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
size_t score_bytes(const FewRowsShape& x, const SplitRule& r) {
  if (!x.scores || r.max_tiles == 1) return 0;
  return pairs(x, r) * static_cast<size_t>(few_rows_score_stride(x)) * sizeof(f16);
}

/// The largest value of `bytes` over all calls within the bounds. It grows with tokens; sequences
/// and rows change the division.
template <class Bytes>
size_t most(const AttentionBounds& b, Bytes bytes) {
  size_t result = 0;
  for (int n_seqs = 1; n_seqs <= std::max(b.max_seqs, 1); ++n_seqs) {
    const int most_rows = std::max({b.max_rows, b.max_tree_rows / n_seqs, 1});
    for (int rows = 1; rows <= most_rows; ++rows)
      for (const bool plain : {false, true})
        // A call without lists may be divided further than one with them.
        for (const bool lists : {false, b.lists}) {
          const FewRowsShape x{.n_seqs = n_seqs,
                               .n_heads = b.n_heads,
                               .n_kv_heads = b.n_kv_heads,
                               .head_dim = b.head_dim,
                               .max_rows = rows,
                               .max_tokens = b.max_tokens,
                               .plain = plain,
                               .multiprocessors = b.multiprocessors,
                               .lists = lists,
                               .scores = b.scores};
          result = std::max(result, bytes(x, split_rule(x)));
        }
  }
  return result;
}

}  // namespace

SplitRule split_rule(const FewRowsShape& x) {
  SplitRule r{};
  r.group = x.n_heads / x.n_kv_heads;
  const int queries = std::max(x.max_rows, 1) * r.group;
  const auto fits = [&](int n) { return queries <= n; };
  // Wide tiles read keys once for more queries; for short sequences that is nothing compared with
  // the time that a warp works on its queries, so that idle multiprocessors are better given some;
  // the trees of 128 nodes of sequoia/bench-llama-2-7b-68m show it.
  constexpr int kShort = 1024;
  const bool spread = x.max_tokens <= kShort &&
                      x.n_seqs * x.n_kv_heads * divide_up(queries, 32) <= x.multiprocessors;
  r.tile_queries = x.plain ? kPlainQueries : fits(16) ? 16 : fits(32) || spread ? 32 : 64;
  r.queries = std::min(queries, r.tile_queries);
  r.max_tiles = divide_up(queries, r.tile_queries);
  // One sequence alone: a large chunk a multiprocessor, and the more in small ones. Of several the
  // longest may be most of the work, and large chunks are of 2 MiB of K and V, so that a few KiB of
  // partial results cost little. Small ones, 256 KiB, take as long to bring as some joins of the
  // warps' states: of many queries, whose joins are long and whose products bound the time, a pair
  // gets few or none (measured: an eighth, 1.11 times the time of one row, a 16th, 1.08).
  const bool alone = x.n_seqs == 1;
  const int share = x.multiprocessors / (x.n_seqs * x.n_kv_heads * r.max_tiles);
  // Where lists or a window bound the keys, sequences read equally much: more chunks, and small
  // ones at the end of some thousand keys, would only be joined (measured: 16 x 512 keys 18.6 us in
  // two chunks, 11.8 in one; 8 x 4,096 keys 40.9 us with small chunks, 36.9 without).
  const bool equal = alone || x.lists || x.window;
  const auto chunks = [&](int n) { return std::clamp(n, 1, kMostChunks - kSmallParts); };
  r.even_chunks = chunks(equal ? share : 2 * share);
  r.short_chunks = chunks(share);
  r.short_pages = 16;
  // There, on 3 to 5 pages, both those forwards and plain steps are faster undivided: see also
  // whole_pages.
  r.whole_pages = 6;
  r.least_pages = fits(32) ? 1 : 4;
  r.small_pages = std::max(8 * 128 / x.head_dim, 1);
  r.full_pages = alone ? INT_MAX : 8 * r.small_pages;
  r.small_16ths = r.tile_queries > 32 ? 0 : r.tile_queries > 16 ? 1 : alone ? 4 : 2;
  r.small_from = equal && !alone ? 160 : 0;
  // Keys of a list and those after it may both end in a part of a page.
  r.max_chunks = std::clamp(divide_up(x.max_tokens, kPageTokens) + (x.lists ? 1 : 0), 1,
                            std::max(r.even_chunks, kLargeParts) + kSmallParts);
  return r;
}

size_t few_rows_ml_bytes(const FewRowsShape& x, const SplitRule& r) {
  return whole_units(states(x, r) * 2 * sizeof(float));
}

size_t few_rows_o_bytes(const FewRowsShape& x, const SplitRule& r) {
  return whole_units(states(x, r) * static_cast<size_t>(x.head_dim) * sizeof(float));
}

size_t attention_few_rows_counter_bytes(const AttentionBounds& b) {
  return (1 + most(b, pairs)) * sizeof(unsigned);
}

size_t attention_few_rows_workspace_bytes(const AttentionBounds& b) {
  return most(b, [](const FewRowsShape& x, const SplitRule& r) {
    return few_rows_ml_bytes(x, r) + few_rows_o_bytes(x, r) + score_bytes(x, r);
  });
}

}  // namespace tandem
