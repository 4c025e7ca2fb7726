#pragma once
// Copies within paged KV pools, and their page tables. K and V are each [n_layers, n_pages,
// n_kv_heads, 64, d], a page id stands for the same tokens in all layers. The CPU's bodies are the
// reference of a GPU's, whose parameters point into device memory.
#include "base/page.h"
#include "base/types.h"

namespace tandem {

struct PagePools {
  void* k;
  void* v;
  int n_layers, n_pages, n_kv_heads;
  int row_bytes;  // of one token and head: d * bytes of an element
};

struct CopyPageParams {
  PagePools pools;  // row_bytes even, both 16-byte aligned
  int32_t from, to;
};

/// Copies a page of K and V in all layers. Of 2 n_layers planes, plane i is K of layer i / 2 where
/// i is even, V where it is odd.
/// cost     reads and writes 2 n_layers n_kv_heads 64 row_bytes
/// errors   none (preconditions checked by the caller)
using CopyPageFn = void(const CopyPageParams&, Range planes);
CopyPageFn copy_page_cpu;
void copy_page_cuda(const CopyPageParams&, Stream);

struct MoveTokensParams {
  PagePools pools;  // row_bytes even, both 16-byte aligned
  // Page * 64 + slot in it; where from_token is negative nothing moves.
  const int32_t* from_token;  // [n_moves]
  const int32_t* to_token;    // [n_moves]
  int n_moves;
};

/// Copies the K and V of tokens in all layers, to leave a path of a token tree contiguous; planes
/// as of copy_page. No move may read a token that one before it has written; it may write one that
/// an earlier move has read.
/// cost     reads and writes 2 n_moves n_layers n_kv_heads row_bytes
/// errors   none (preconditions checked by the caller)
using MoveTokensFn = void(const MoveTokensParams&, Range planes);
MoveTokensFn move_tokens_cpu;
void move_tokens_cuda(const MoveTokensParams&, Stream);

struct PathMovesParams {
  // Results, what move_tokens takes: [n_seqs, max_moves], from_token is -1 where nothing moves.
  int32_t* from_token;
  int32_t* to_token;
  const int32_t* path;  // [n_seqs, n_nodes] nodes of a token tree, from a child of the root on
  const int32_t* n_accepted;  // [n_seqs] of them
  const int32_t* position;    // [n_seqs] tokens of the text, the tree's root the last of them
  const int32_t* page_table;  // [slots, max_pages]
  const int32_t* slot;        // [n_seqs] row of the page table
  int n_seqs, n_nodes, max_pages;
  int max_moves;     // at least the longest path
  int n_nodes_held;  // nodes from this one on have no K and V, and stay where they are
};

/// What to move so that the K and V of a path follow its root without gaps. Node i of a sequence
/// has them i tokens after the root; on a path, nodes ascend.
/// errors   none (preconditions checked by the caller)
using PathMovesFn = void(const PathMovesParams&, Range seqs);
PathMovesFn path_moves_cpu;
void path_moves_cuda(const PathMovesParams&, Stream);

/// A cell of a page table and the page that it gets.
struct PageChange {
  int32_t cell, page;
};

struct SetPagesParams {
  int32_t* table;
  const PageChange* changes;  // [n_changes] no cell twice; 4-byte aligned
  int n_changes;
};

/// table[changes[i].cell] = changes[i].page.
/// errors   none (preconditions checked by the caller)
using SetPagesFn = void(const SetPagesParams&, Range changes);
SetPagesFn set_pages_cpu;
void set_pages_cuda(const SetPagesParams&, Stream);

}  // namespace tandem
