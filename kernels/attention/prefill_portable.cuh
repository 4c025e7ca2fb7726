#pragma once
// What the portable prefill kernels of both dtypes share: tiles of queries and the pages they meet.
#include "kernels/attention/attention_prefill_cuda.h"
#include "kernels/attention/visibility.h"
#include "kernels/cuda/reduce.cuh"

namespace tandem::portable {

/// Queries [query, query + n) of one KV head of a sequence, query = row * G + head in group; grid
/// (tiles, KV heads, sequences).
struct QueryTile {
  Sequence s;
  int group, kv_head, query, n, row_first, row_last;

  __device__ QueryTile(const AttentionParams& p, int queries)
      : s(sequence_of(p, static_cast<int>(blockIdx.z))),
        group(p.n_heads / p.n_kv_heads),
        kv_head(static_cast<int>(blockIdx.y)),
        query(static_cast<int>(blockIdx.x) * queries),
        n(min(queries, s.n_rows * group - query)),
        row_first(query / group),
        row_last((query + n - 1) / group) {}
  __device__ bool empty() const { return n <= 0; }
  __device__ int row(int i) const { return (query + i) / group; }
  /// Where query i lies in q, out and lse, in vectors of d.
  __device__ int64_t vector_at(const AttentionParams& p, int i) const {
    const int head = kv_head * group + (query + i) % group;
    return static_cast<int64_t>(s.first_row + row(i)) * p.n_heads + head;
  }
  /// Pages that may be seen: all before the last row's key.
  __device__ int n_pages() const { return (s.end + kPageTokens - 1) / kPageTokens; }
  /// Slots of a page that are written; what lies behind them may be NaN.
  __device__ int written(int page) const { return min(kPageTokens, s.end - page * kPageTokens); }
  /// First element of a page's keys or values of this KV head.
  __device__ int64_t page_at(const AttentionParams& p, int page) const {
    return (static_cast<int64_t>(s.pages[page]) * p.n_kv_heads + kv_head) * kPageTokens *
           p.head_dim;
  }
  /// Fills seen[i] for all queries of the tile, threads in turn. False: no query sees the page.
  /// Called by all threads; a __syncthreads must follow before `seen` is read, and precede the
  /// call.
  __device__ bool look(const AttentionParams& p, int page, int queries, uint64_t* seen) const {
    const Seen how = page_seen(p, s, row_first, row_last, page);
    if (how == Seen::none || s.pages[page] < 0) return false;
    for (int i = threadIdx.x; i < queries; i += blockDim.x)
      seen[i] = i >= n ? 0 : how == Seen::all ? ~uint64_t{0} : visible_keys(p, s, row(i), page);
    return true;
  }
};

inline dim3 grid_of(const AttentionParams& p, const AttentionRows& rows, int queries) {
  const int group = p.n_heads / p.n_kv_heads;
  return {static_cast<unsigned>((rows.max_rows_a_seq * group + queries - 1) / queries),
          static_cast<unsigned>(p.n_kv_heads), static_cast<unsigned>(p.n_seqs)};
}

void prefill_f32(const AttentionParams&, const AttentionRows&, cudaStream_t);
void prefill_bf16(const AttentionParams&, const AttentionRows&, cudaStream_t);

}  // namespace tandem::portable
