#pragma once
// A task at work: its queries, its sequence, the pages of the step in hand. Included by ISA files
// only.
#include <math.h>
#include <string.h>

#include "base/log2.h"
#include "kernels/attention/scratch.h"
#include "kernels/attention/visibility.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using simd::kW;
using simd::Mask;
using simd::Vec;
constexpr int kSplitPages = kSplitTokens / kPageTokens;
constexpr float kEmpty = -__builtin_inff();

struct Block {
  const AttentionParams* params;
  Sequence seq;
  Scratch scratch;
  int seq_index, kv_head, query_begin, n_queries;
  f16* key_scores;  // [tokens] of the KV head; null: not wanted
  bool follows;     // and they hold those of earlier queries
  // State vectors. Of many queries, a vector's lanes are queries, and its part of o is [d][kW]; of
  // few queries, each has a vector whose lanes are equal, and its part of o is [d].
  int n_vectors;
  bool few;
  int d;
  const void* k_page[kMaxStepPages];  // pages of the current step, as begin_page found or made them
  const void* v_page[kMaxStepPages];
  int n_valid[kMaxStepPages];
  // The pages one step ahead, or null. They are fetched while this step is worked on, evenly,
  // because memory would otherwise stand still.
  const void *next_k[kMaxStepPages], *next_v[kMaxStepPages];
  int page_limit;  // end of the task's pages: what lies beyond is not worth fetching
  /// Floats of a vector's part of o in use, and from one part to the next.
  int o_width() const { return few ? (d + kW - 1) / kW * kW : d * kW; }
  int o_stride() const { return padded_dim(d) * (few ? 1 : kW); }
  int group_size() const { return params->n_heads / params->n_kv_heads; }
  /// Lanes past the last query repeat it, so that they never change what a vector must do.
  int query(int lane) const { return query_begin + (lane < n_queries ? lane : n_queries - 1); }
  int row(int lane) const { return query(lane) / group_size(); }
  /// Index of a lane's head vector in q and out.
  size_t head_at(int lane) const {
    const int g = group_size(), r = query(lane) / g, head = kv_head * g + query(lane) % g;
    return static_cast<size_t>(seq.first_row + r) * static_cast<size_t>(params->n_heads) +
           static_cast<size_t>(head);
  }
};

/// The block's part of a page in the K or V pool; null beyond the task or where none is held.
template <class T>
TANDEM_INLINE const T* page_of(const Block& b, const void* pool, int page) {
  if (page >= b.page_limit || b.seq.pages[page] < 0) return nullptr;
  const AttentionParams& p = *b.params;
  return static_cast<const T*>(pool) +
         (static_cast<size_t>(b.seq.pages[page]) * static_cast<size_t>(p.n_kv_heads) +
          static_cast<size_t>(b.kv_head)) *
             static_cast<size_t>(kPageTokens * b.d);
}

/// Slots of a page that were written.
TANDEM_INLINE int valid_keys(const Block& b, int page) {
  const int written = b.seq.end - page * kPageTokens;
  return written < kPageTokens ? written : kPageTokens;
}

/// Asks for bytes [begin, end) of `page` to be brought into L2; null asks for nothing.
TANDEM_INLINE void fetch(const void* page, int begin, int end) {
  if (page == nullptr) return;
  for (int i = begin; i < end; i += 64)
    __builtin_prefetch(static_cast<const char*>(page) + i, 0, 2);
}

/// A page to fetch while a multiply runs, a share with every row of the product.
struct Ahead {
  const void* page;
  int row_bytes;
  TANDEM_INLINE void fetch_rows(int first, int n) const {
    fetch(page, first * row_bytes, (first + n) * row_bytes);
  }
};

inline Block make_block(const AttentionParams& p, const AttentionTask& t, void* scratch, bool few) {
  Block b{};
  b.params = &p;
  b.seq = sequence_of(p, t.seq);
  lay_out(b.scratch, static_cast<char*>(scratch), p.head_dim);
  b.seq_index = t.seq;
  b.kv_head = t.kv_head;
  b.query_begin = t.query_begin;
  b.n_queries = t.n_queries;
  b.few = few;
  b.n_vectors = few ? t.n_queries : (t.n_queries + kW - 1) / kW;
  b.d = p.head_dim;
  b.key_scores =
      p.scores.at == nullptr ? nullptr : scores_of(p.scores, table_row(p, t.seq), t.kv_head);
  b.follows = t.follows;
  const int written = (b.seq.end + kPageTokens - 1) / kPageTokens;
  b.page_limit = written < t.split_end * kSplitPages ? written : t.split_end * kSplitPages;
  return b;
}

TANDEM_INLINE Vec finite_or_zero(Vec m) {
  return select(lt(simd::set1(kEmpty), m), m, simd::zero());
}

}  // namespace
}  // namespace tandem
