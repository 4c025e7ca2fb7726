#pragma once
// Scores of all keys, for policies that choose among them by a row's own query, on a GPU: contract.
// Pointers lie in device memory.
#include "base/types.h"

namespace tandem {

/// Rows of a step that choose for themselves, each query head for itself: list i is that of the row
/// i / n_heads after the first of `rows`, and of head i % n_heads. Rows from row_begin[n_seqs] on
/// belong to no sequence: their lists are empty.
struct ChoosingRows {
  const int32_t* slot;       // [n_seqs]
  const int32_t* row_begin;  // [n_seqs + 1]
  const int32_t* pos;        // [rows of the step]
  int n_seqs;
  Range rows;
};

struct ScoreKeysParams {
  float* scores;              // out: of list i and token t at i * score_stride + t
  int32_t* n;                 // out [lists] tokens that are scored: all that the row sees
  int32_t* m;                 // out [lists] max(1, ratio * n), rounded down; 0 without a sequence
  const void* q;              // [rows of the step, n_heads, d] of dtype, 16-byte aligned
  const void* k_pool;         // [n_pages, n_kv_heads, 64, d] of dtype, 16-byte aligned
  const int32_t* page_table;  // [slots, max_pages]
  int64_t score_stride;
  ChoosingRows choosing;
  int max_pages, n_heads, n_kv_heads, d;
  DType dtype;  // f32 or bf16; d <= 256, faster with rows of a multiple of 16 bytes
  int max_tokens;
  float scale;
  double ratio;
};

/// scores = scale q.k of the tokens 0 to pos of each row, of a chain.
/// numerics f32 from the stored keys on
/// cost     reads the keys once a row for the heads of a KV head together
/// errors   none (preconditions checked by the caller)
void score_keys_cuda(const ScoreKeysParams&, Stream);

}  // namespace tandem
