#pragma once
// Copies within paged KV pools on a GPU, and their page tables. K and V are each [n_layers,
// n_pages, n_kv_heads, 64, d], a page id stands for the same tokens in all layers.
#include "base/types.h"

namespace tandem {

/// Token slots of one page.
inline constexpr int kPoolPageTokens = 64;

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

/// Copies a page of K and V in all layers.
/// cost     reads and writes 2 n_layers n_kv_heads 64 row_bytes
/// errors   none (preconditions checked by the caller)
void copy_page_cuda(const CopyPageParams&, Stream);

struct MoveTokensParams {
  PagePools pools;  // row_bytes even, both 16-byte aligned
  // In device memory, page * 64 + slot in it; where from_token is negative nothing moves.
  const int32_t* from_token;  // [n_moves]
  const int32_t* to_token;    // [n_moves]
  int n_moves;
};

/// Copies the K and V of tokens in all layers, to leave a path of a token tree contiguous. No move
/// may read a token that one before it has written; it may write one that an earlier move has read.
/// cost     reads and writes 2 n_moves n_layers n_kv_heads row_bytes
/// errors   none (preconditions checked by the caller)
void move_tokens_cuda(const MoveTokensParams&, Stream);

/// A cell of a page table and the page that it gets.
struct PageChange {
  int32_t cell, page;
};

struct SetPagesParams {
  int32_t* table;
  const PageChange* changes;  // [n_changes] in device memory, no cell twice; 4-byte aligned
  int n_changes;
};

/// table[changes[i].cell] = changes[i].page.
/// errors   none (preconditions checked by the caller)
void set_pages_cuda(const SetPagesParams&, Stream);

}  // namespace tandem
