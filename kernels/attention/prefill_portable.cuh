#pragma once
// What the portable prefill kernels of both dtypes share: tiles of queries and the pages they meet.
#include "kernels/attention/attention_prefill_cuda.h"
#include "kernels/attention/visibility.cuh"
#include "kernels/attention/visibility.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/reduce.cuh"

namespace tandem::portable {

/// The order of a sequence's tiles: sections of KV heads one after another, of each section the
/// tiles from the long ones (last rows) to the short, the section's heads side by side.
struct TileOrder {
  int tiles;    // of the longest sequence
  int section;  // KV heads whose keys and values L2 holds
};

/// Queries [query, query + n) of one KV head of a sequence, query = row * G + head in group; grid
/// (tiles x KV heads, sequences).
struct QueryTile {
  Sequence s;
  int group, kv_head, query, n, row_first, row_last;

  __device__ QueryTile(const AttentionParams& p, const TileOrder& order, int queries)
      : s(sequence_of(p, static_cast<int>(blockIdx.y))), group(p.n_heads / p.n_kv_heads) {
    int left = static_cast<int>(blockIdx.x);
    const int first = left / (order.tiles * order.section) * order.section;
    left -= order.tiles * first;
    const int width = min(order.section, p.n_kv_heads - first);
    kv_head = first + left % width;
    query = (order.tiles - 1 - left / width) * queries;
    n = min(queries, s.n_rows * group - query);
    row_first = query / group;
    row_last = (query + n - 1) / group;
  }
  __device__ bool empty() const { return n <= 0; }
  __device__ int row(int i) const { return (query + i) / group; }
  /// Where query i lies in q, out and lse, in vectors of d.
  __device__ int64_t vector_at(const AttentionParams& p, int i) const {
    const int head = kv_head * group + (query + i) % group;
    return static_cast<int64_t>(s.first_row + row(i)) * p.n_heads + head;
  }
  /// Slots of a page that are written; slots after them may hold NaN.
  __device__ int written(int page) const {
    return max(0, min(kPageTokens, s.end - page * kPageTokens));
  }
};

/// Pages that rows [row_first, row_last] may see: those of the sinks, then those of the window.
struct VisiblePages {
  int sink_first, sinks, first, count;

  __device__ VisiblePages(const AttentionParams& p, const Sequence& s, int row_first,
                          int row_last) {
    const bool tree = p.tree_mask != nullptr;  // its rows lie at any position
    const int key_lo = max(s.key_lo, 0);
    const int end = tree ? s.end : min(p.key_hi, s.base + row_last + 1);
    const bool windowed = p.window > 0;
    const int x_first = tree ? s.base : s.base + row_first;
    const int begin = windowed ? max(key_lo, x_first - p.window + 1) : key_lo;
    first = begin / kPageTokens;
    count = begin < end ? (end + kPageTokens - 1) / kPageTokens - first : 0;
    const int sink_end = windowed ? min(p.sinks, end) : 0;
    sink_first = key_lo / kPageTokens;
    sinks = key_lo < sink_end
                ? max(0, min((sink_end + kPageTokens - 1) / kPageTokens, first) - sink_first)
                : 0;
    count += sinks;
  }
  __device__ int operator[](int i) const { return i < sinks ? sink_first + i : first + i - sinks; }
};

/// The pages [begin, end) of which each of some rows sees every key.
struct WholePages {
  int begin, end;

  __device__ WholePages(const AttentionParams& p, const Sequence& s, int row_first, int row_last) {
    const bool tree = p.tree_mask != nullptr;
    const int x_last = tree ? s.end - 1 : s.base + row_last;
    const int lo = p.window > 0 ? max(s.key_lo, x_last - p.window + 1) : s.key_lo;
    begin = (max(lo, 0) + kPageTokens - 1) / kPageTokens;
    end = min(p.key_hi, tree ? s.base : s.base + row_first + 1) / kPageTokens;
  }
  __device__ bool hold(int page) const { return page >= begin && page < end; }
};

inline TileOrder tile_order(const AttentionParams& p, const AttentionRows& rows, int queries) {
  const int group = p.n_heads / p.n_kv_heads;
  const int64_t element = p.dtype == DType::bf16 ? 2 : 4;
  // Keys and values of all KV heads, in as many equal sections as it takes for L2 to hold one: the
  // last should not be so small that its long tiles are all that is left at the end.
  const int64_t bytes = 2 * element * rows.max_tokens * p.head_dim * p.n_kv_heads;
  const int64_t sections = bytes / cuda::gpu().l2_bytes + 1;
  const int64_t section = (p.n_kv_heads + sections - 1) / sections;
  return {(rows.max_rows_a_seq * group + queries - 1) / queries, static_cast<int>(section)};
}

inline dim3 grid_of(const AttentionParams& p, const TileOrder& order) {
  return {static_cast<unsigned>(order.tiles * p.n_kv_heads), static_cast<unsigned>(p.n_seqs), 1};
}

void prefill_f32(const AttentionParams&, const AttentionRows&, cudaStream_t);
void prefill_bf16(const AttentionParams&, const AttentionRows&, cudaStream_t);

}  // namespace tandem::portable
