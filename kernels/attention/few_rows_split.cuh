#pragma once
// How attention of few rows is divided among blocks.
//
// A pair is a tile of queries (row x head of a KV group) with its KV head; the pages that its
// sequence's rows may see are cut into chunks of equal length. How long they are depends on the
// sequence's own number of pages and on the launch, never on other sequences: a chunk's state has
// the same bits whoever computes it. All pages of all pairs laid end to end are divided evenly
// among the blocks, and a block takes the chunks that begin in its share.
#include "kernels/attention/attention_cuda.h"
#include "kernels/cuda/reduce.cuh"

namespace tandem {

/// The part of the division that is fixed when a call is launched.
struct SplitRule {
  int tile_queries;     // queries of a tile
  int queries;          // most queries of a tile that occur
  int max_tiles;        // of a sequence
  int target_chunks;    // of a long sequence
  int min_chunk_pages;  // below which a chunk costs more than it gives
  int max_chunks;       // of any sequence

  __host__ __device__ int chunk_pages(int n_pages) const {
    const int even = (n_pages + target_chunks - 1) / target_chunks;
    return even > min_chunk_pages ? even : min_chunk_pages;
  }
};

/// Pages that rows of a sequence may see: [first[0], first[0] + n[0]) and [first[1], ...) in this
/// order.
struct SeenPages {
  int first[2], n[2];
  __host__ __device__ int count() const { return n[0] + n[1]; }
  __host__ __device__ int page(int i) const {
    return i < n[0] ? first[0] + i : first[1] + i - n[0];
  }
};

/// One sequence as the kernels see it.
struct SeqView {
  int first_row, n_rows, base, key_lo, tiles;
  SeenPages pages;
};

/// A chunk of a pair.
struct Chunk {
  int seq, tile, kv_head, index, n_chunks;
  int begin, end;  // into the sequence's SeenPages
  int run;  // chunks of this pair that the block has done, if it goes on to another pair; otherwise
            // 0
};

/// What device memory says of a sequence.
struct SeqNumbers {
  int first_row, end_row, base, own_lo;
};

__device__ inline SeqNumbers read_sequence(const AttentionParams& p, int s) {
  return {p.row_begin[s], p.row_begin[s + 1], p.base[s],
          p.seq_key_lo == nullptr ? 0 : p.seq_key_lo[s]};
}

__device__ inline SeqView view_sequence(const AttentionParams& p, const SplitRule& rule,
                                        const SeqNumbers& x) {
  SeqView v;
  v.first_row = x.first_row;
  v.n_rows = x.end_row - x.first_row;
  v.base = x.base;
  v.key_lo = max(max(p.key_lo, x.own_lo), 0);
  const int group = p.n_heads / p.n_kv_heads;
  v.tiles = (v.n_rows * group + rule.tile_queries - 1) / rule.tile_queries;
  // Slots [key_lo, head) are sinks, [begin, end) the rest. The rows of a tree lie at any position.
  const int n_slots = v.base + v.n_rows;
  const bool tree = p.tree_mask != nullptr;
  const int end = tree ? n_slots : min(n_slots, p.key_hi);
  int head = v.key_lo, begin = v.key_lo;
  if (p.window > 0) {
    head = min(p.sinks, min(end, p.key_hi));
    begin = max(begin, v.base - p.window + 1);
  }
  if (tree) begin = min(begin, v.base);
  const int page_begin = begin / kPageTokens, page_end = (end + kPageTokens - 1) / kPageTokens;
  v.pages.first[0] = v.key_lo / kPageTokens;
  v.pages.n[0] = max(min((head + kPageTokens - 1) / kPageTokens, page_begin) - v.pages.first[0], 0);
  if (head <= v.key_lo) v.pages.n[0] = 0;
  v.pages.first[1] = page_begin;
  v.pages.n[1] = end > begin ? page_end - page_begin : 0;
  return v;
}

/// The chunks of one block, in order. All lanes of a warp hold the same walk and step together.
class ChunkWalk {
 public:
  __device__ ChunkWalk(const AttentionParams& p, const SplitRule& rule) : p_(p), rule_(rule) {
    // The first sequences, one a lane, stay in registers: most batches are no larger.
    const SeqNumbers first = read_sequence(p, min(lane(), p.n_seqs - 1));
    if (p.n_seqs == 1) {  // no sums over lanes: their time shows in a short sequence's
      enter(first);
      share(weight(view_));
      if (at_ < end_) begin();
      return;
    }
    const int64_t first_weight = lane() < p.n_seqs ? weight(view_sequence(p, rule, first)) : 0;
    int64_t own = first_weight;
    for (int s = lane() + cuda::kWarp; s < p.n_seqs; s += cuda::kWarp) own += weight_of(s);
    share(warp_total(own));
    if (at_ < end_) seek(first, first_weight);
  }

  __device__ bool valid() const { return at_ < end_; }
  __device__ const SeqView& seq() const { return view_; }
  __device__ Chunk chunk() const {
    const int n_pages = view_.pages.count(), from = index_ * chunk_pages_;
    const bool goes_on = index_ + 1 < n_chunks_ && at_ + chunk_pages_ < end_;
    return {.seq = s_,
            .tile = pair_ % view_.tiles,
            .kv_head = pair_ / view_.tiles,
            .index = index_,
            .n_chunks = n_chunks_,
            .begin = from,
            .end = min(from + chunk_pages_, n_pages),
            .run = goes_on ? 0 : index_ - run_begin_ + 1};
  }
  __device__ void next() {
    ++index_;
    settle();
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % cuda::kWarp; }
  __device__ static int64_t warp_total(int64_t x) {
    for (int step = cuda::kWarp / 2; step > 0; step /= 2)
      x += __shfl_xor_sync(cuda::kAllLanes, x, step);
    return x;
  }
  /// This block's share of `total` pages.
  __device__ void share(int64_t total) {
    if (total <= INT_MAX / 1024 && gridDim.x < 1024) {  // division of 64 bits is long
      const auto pages = static_cast<unsigned>(total);
      at_ = pages * blockIdx.x / gridDim.x;
      end_ = pages * (blockIdx.x + 1) / gridDim.x;
    } else {
      at_ = total * blockIdx.x / gridDim.x;
      end_ = total * (blockIdx.x + 1) / gridDim.x;
    }
  }

  /// Pages of all pairs of a sequence. One that sees nothing counts as a page: its rows are written
  /// too.
  __device__ int64_t weight(const SeqView& v) const {
    return static_cast<int64_t>(v.tiles) * p_.n_kv_heads * max(v.pages.count(), 1);
  }
  __device__ int64_t weight_of(int s) const {
    return s < p_.n_seqs ? weight(view_sequence(p_, rule_, read_sequence(p_, s))) : 0;
  }

  /// Finds the sequence in which this block's share begins, and the first chunk at or behind that
  /// point.
  __device__ void seek(const SeqNumbers& numbers, int64_t first_weight) {
    int64_t before = 0;
    for (int first = 0;; first += cuda::kWarp) {
      const int64_t own = first == 0 ? first_weight : weight_of(first + lane());
      int64_t sum = own;
      for (int step = 1; step < cuda::kWarp; step *= 2) {
        const int64_t lower = __shfl_up_sync(cuda::kAllLanes, sum, step);
        if (lane() >= step) sum += lower;
      }
      const unsigned reached = __ballot_sync(cuda::kAllLanes, before + sum > at_);
      if (reached != 0) {
        const int found = __ffs(static_cast<int>(reached)) - 1;
        s_ = first + found;
        seq_begin_ = before + __shfl_sync(cuda::kAllLanes, sum - own, found);
        const auto from = [&](int x) { return __shfl_sync(cuda::kAllLanes, x, found); };
        const SeqNumbers kept{from(numbers.first_row), from(numbers.end_row), from(numbers.base),
                              from(numbers.own_lo)};
        enter(first == 0 ? kept : read_sequence(p_, s_));
        break;
      }
      before += __shfl_sync(cuda::kAllLanes, sum, cuda::kWarp - 1);
    }
    begin();
  }
  /// The first chunk at or behind this block's first page, in the sequence entered. Pages of one
  /// sequence's pairs are fewer than 2^31.
  __device__ void begin() {
    const int offset = static_cast<int>(at_ - seq_begin_);
    pair_ = offset / pair_pages_;
    index_ = run_begin_ = (offset % pair_pages_ + chunk_pages_ - 1) / chunk_pages_;
    settle();
  }
  __device__ void enter(const SeqNumbers& numbers) {
    view_ = view_sequence(p_, rule_, numbers);
    pair_pages_ = max(view_.pages.count(), 1);
    chunk_pages_ = rule_.chunk_pages(pair_pages_);
    n_chunks_ = (pair_pages_ + chunk_pages_ - 1) / chunk_pages_;
  }
  /// Carries a chunk index that ran over into the pair and the sequence.
  __device__ void settle() {
    if (index_ == n_chunks_) {
      index_ = run_begin_ = 0;
      ++pair_;
    }
    while (pair_ == view_.tiles * p_.n_kv_heads) {
      seq_begin_ += weight(view_);
      pair_ = 0;
      if (++s_ >= p_.n_seqs) {
        at_ = end_;
        return;
      }
      enter(read_sequence(p_, s_));
    }
    at_ = seq_begin_ + static_cast<int64_t>(pair_) * pair_pages_ + index_ * chunk_pages_;
  }

  const AttentionParams& p_;
  const SplitRule& rule_;
  int64_t at_, end_, seq_begin_ = 0;  // in pages of all pairs
  int s_ = 0, pair_ = 0, index_ = 0, run_begin_ = 0, pair_pages_ = 0, chunk_pages_ = 1,
      n_chunks_ = 1;
  SeqView view_;
};

}  // namespace tandem
