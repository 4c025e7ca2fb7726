#pragma once
// How attention of few rows is divided among blocks.
//
// A pair is a tile of queries (row x head of a KV group) with its KV head; the pages that its
// sequence's rows may see are cut into chunks. How follows from the sequence's own number of pages
// and from the launch, never from other sequences: a chunk's state has the same bits in whichever
// block computes it. Blocks take chunks by number, those of all pairs that are large before all
// that are small: multiprocessors get unequal shares of the memory's bandwidth, and small chunks at
// the end even that out.
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/few_rows_plan.h"
#include "kernels/cuda/reduce.cuh"

namespace tandem {

/// Pages that rows of a sequence may see: first the lists' keys, 64 at a time as if they were
/// pages, of the longest of the KV heads' lists, then [first[0], first[0] + n[0]) and
/// [first[1], ...).
struct SeenPages {
  int listed, first[2], n[2];
  __host__ __device__ int count() const { return listed + n[0] + n[1]; }
  __host__ __device__ int page(int i) const {
    i -= listed;
    return i < n[0] ? first[0] + i : first[1] + i - n[0];
  }
};

/// One sequence as the kernels see it.
struct SeqView {
  int first_row, n_rows, base, end, key_lo, tiles;  // base and end as in Sequence
  int committed;                                    // tokens
  SeenPages pages;
};

/// A chunk of a pair.
struct Chunk {
  int seq, tile, kv_head, index, n_chunks;
  int begin, end;  // into the sequence's SeenPages
};

/// A sequence's numbers in device memory.
struct SeqNumbers {
  int first_row, end_row, base, tentative, own_lo, listed;  // listed: pages of its lists
};

__device__ inline SeqNumbers read_sequence(const AttentionParams& p, int s) {
  SeqNumbers x{p.row_begin[s],
               p.row_begin[s + 1],
               p.base[s],
               p.tentative == nullptr ? 0 : p.tentative[s],
               0,
               0};
  if (p.seq_key_lo != nullptr) x.own_lo = p.seq_key_lo[s];
  const int row = table_row(p, s);
  if (p.lists.rest != nullptr) x.own_lo = max(x.own_lo, p.lists.rest[row]);
  if (p.lists.ids == nullptr) return x;
  int tokens = 0;
  for (int h = 0; h < p.n_kv_heads; ++h) tokens = max(tokens, listed_tokens(p.lists, row, h));
  x.listed = (tokens + kPageTokens - 1) / kPageTokens;
  return x;
}

__device__ inline SeqView view_sequence(const AttentionParams& p, const SplitRule& rule,
                                        const SeqNumbers& x) {
  SeqView v;
  v.first_row = x.first_row;
  v.n_rows = x.end_row - x.first_row;
  const bool tree = p.tree_mask != nullptr;
  v.base = tree ? x.base : x.base + x.tentative;
  v.end = x.base + x.tentative + v.n_rows;
  v.committed = x.base;
  v.key_lo = max(max(p.key_lo, x.own_lo), 0);
  v.tiles = (v.n_rows * rule.group + rule.tile_queries - 1) / rule.tile_queries;
  // Slots [key_lo, head) are sinks, [begin, end) the rest. The rows of a tree lie at any position.
  const int end = tree ? v.end : min(v.end, p.key_hi);
  int head = v.key_lo, begin = v.key_lo;
  if (p.window > 0) {
    head = min(p.sinks, min(end, p.key_hi));
    begin = max(begin, v.base - p.window + 1);
  }
  if (tree) begin = min(begin, v.base);
  v.pages.listed = x.listed;
  const int page_begin = begin / kPageTokens, page_end = (end + kPageTokens - 1) / kPageTokens;
  v.pages.first[0] = v.key_lo / kPageTokens;
  v.pages.n[0] = max(min((head + kPageTokens - 1) / kPageTokens, page_begin) - v.pages.first[0], 0);
  if (head <= v.key_lo) v.pages.n[0] = 0;
  v.pages.first[1] = page_begin;
  v.pages.n[1] = end > begin ? page_end - page_begin : 0;
  return v;
}

/// The chunks of a call by number: the large ones of all pairs, then the small ones; in each kind
/// sequence by sequence, of one sequence by KV head, then by place, then by tile, so that tiles
/// that read the same pages do so at about the same time. All lanes of a warp hold the same object
/// and call it together, with numbers that never fall.
class ChunkList {
 public:
  __device__ ChunkList(const AttentionParams& p, const SplitRule& rule) : p_(p), rule_(rule) {
    enter(0);
  }

  /// The chunk of this number; false after the last one.
  __device__ bool find(int number, SeqView& v, Chunk& k) {
    while (number >= end()) {
      const bool more = first_ + cuda::kWarp < p_.n_seqs;
      if (!more && small_) return false;
      before_ = end();
      small_ |= !more;
      enter(more ? first_ + cuda::kWarp : 0);
    }
    const unsigned reached = __ballot_sync(cuda::kAllLanes, number < before_ + sum_);
    const int found = __ffs(static_cast<int>(reached)) - 1;
    const auto from = [&](int x) { return __shfl_sync(cuda::kAllLanes, x, found); };
    v = view_sequence(p_, rule_,
                      {from(numbers_.first_row), from(numbers_.end_row), from(numbers_.base),
                       from(numbers_.tentative), from(numbers_.own_lo), from(numbers_.listed)});
    const PairChunks c = rule_.divide(max(v.pages.count(), 1));
    const int n = small_ ? c.n_small : c.n_large, pages = small_ ? c.small_pages : c.large_pages;
    const int own = number - before_ - from(sum_) + v.tiles * p_.n_kv_heads * n;
    const int place = own / v.tiles, index = place % n;
    k.seq = first_ + found;
    k.tile = own % v.tiles;
    k.kv_head = place / n;
    k.index = small_ ? c.n_large + index : index;
    k.n_chunks = c.count();
    k.begin = (small_ ? c.n_large * c.large_pages : 0) + index * pages;
    k.end = min(k.begin + pages, v.pages.count());
    return true;
  }
  /// How many there are, once find has returned false.
  __device__ int count() const { return end(); }

 private:
  /// Number after the last chunk of the group entered.
  __device__ int end() const {
    return before_ + __shfl_sync(cuda::kAllLanes, sum_, cuda::kWarp - 1);
  }
  /// Sequences [first, first + 32), one a lane.
  __device__ void enter(int first) {
    const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
    first_ = first;
    numbers_ = read_sequence(p_, min(first + lane, p_.n_seqs - 1));
    const SeqView v = view_sequence(p_, rule_, numbers_);
    // A sequence that sees nothing has a chunk, too: its rows are written.
    const PairChunks c = rule_.divide(max(v.pages.count(), 1));
    const int n = small_ ? c.n_small : c.n_large;
    sum_ = first + lane < p_.n_seqs ? v.tiles * p_.n_kv_heads * n : 0;
    for (int step = 1; step < cuda::kWarp; step *= 2) {
      const int lower = __shfl_up_sync(cuda::kAllLanes, sum_, step);
      if (lane >= step) sum_ += lower;
    }
  }

  const AttentionParams& p_;
  const SplitRule& rule_;
  bool small_ = false;          // which kind
  int first_ = 0, before_ = 0;  // of the group: its first sequence, chunks of those ahead of it
  SeqNumbers numbers_;          // of this lane's sequence
  int sum_;                     // chunks of the group up to and with this lane's sequence
};

}  // namespace tandem
