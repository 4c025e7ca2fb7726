#pragma once
// Rings of the newest queries of sequences, [slots, n_layers, capacity, row_bytes]: the query of
// token t lies in row t % capacity. The CPU's bodies are the reference of a GPU's, whose parameters
// point into device memory.
#include "base/types.h"

namespace tandem {

struct QueryRings {
  void* rows;  // 16-byte aligned
  int n_layers, capacity;
  int row_bytes;  // of one token under a layer: heads * d * bytes of an element, even
};

namespace {
/// Bytes from the rings' begin to the query of a token.
constexpr int64_t ring_offset(const QueryRings& r, int64_t slot, int layer, int token) {
  return ((slot * r.n_layers + layer) * r.capacity + token % r.capacity) * r.row_bytes;
}
}  // namespace

struct WriteQueriesParams {
  QueryRings rings;
  const void* q;  // [n_rows, row_bytes] 16-byte aligned
  // The step's arrays, as kernels/attention/attention.h has them.
  const int32_t* slot;       // [n_seqs]
  const int32_t* row_begin;  // [n_seqs + 1]
  const int32_t* base;       // [n_seqs]
  const int32_t* tentative;  // [n_seqs]; null: none
  int n_seqs, n_rows, layer;
};

/// Writes the queries of a step's rows under a layer, of each sequence the last `capacity`: row i
/// at token base + tentative + i.
/// cost     reads and writes the rows
/// errors   none (preconditions checked by the caller)
using WriteQueriesFn = void(const WriteQueriesParams&, Range seqs);
WriteQueriesFn write_queries_cpu;
void write_queries_cuda(const WriteQueriesParams&, Stream);

struct MoveQueriesParams {
  QueryRings rings;
  // Of trees, as kernels/page/page.h's PathMovesParams has them.
  const int32_t* path;        // [n_seqs, n_nodes]
  const int32_t* n_accepted;  // [n_seqs]
  const int32_t* position;    // [n_seqs]
  const int32_t* slot;        // [n_seqs]
  int n_seqs, n_nodes;
  int n_nodes_held;
  int max_moves;  // no path is longer; below `capacity`, as all nodes are
};

/// Moves the queries of a path next to its root's in all layers, as move_tokens does the keys.
/// errors   none (preconditions checked by the caller)
using MoveQueriesFn = void(const MoveQueriesParams&, Range seqs);
MoveQueriesFn move_queries_cpu;
void move_queries_cuda(const MoveQueriesParams&, Stream);

}  // namespace tandem
