#pragma once
// Attention of few rows over lists of keys that every row and query head (or KV head) chose for
// itself, on a GPU: contract. Pointers lie in device memory.
#include "base/types.h"

namespace tandem {

/// The LSH weights of attend_list.h, for lists of one head.
struct CollisionWeights {
  const float* norms = nullptr;    // as ids: |k - center|; below 0: the key counts once. Null: none
  const float* queries = nullptr;  // of list i at 2 i: |q|, q.center
  const float* log_u = nullptr;    // [log_u_intervals + 1]
  int log_u_intervals = 0;
};

/// Lists of keys by row and head, of some of a step's rows: list i is that of the row i /
/// lists_a_row after the first of them and of the heads [h, h + heads), h = i % lists_a_row *
/// heads.
struct QueryLists {
  const int32_t* ids = nullptr;    // list i begins at i * stride: tokens of its sequence
  const float* bias = nullptr;     // as ids; added to scores. Null: nothing is
  const int32_t* count = nullptr;  // of list i; 0: none
  int64_t stride = 0;
  int most = 0;   // no count is larger
  int heads = 1;  // query heads of a list: 1, or those of a KV head
  CollisionWeights weights = {};
};

/// What stands for the keys that are in no list, by row and head: runs of kMeanKeys indexed tokens
/// (kernels/code/tail_means.h), run b of a sequence in row b % block_runs of its block b /
/// block_runs.
struct ListTails {
  const float* masses = nullptr;  // of row and head i at i * mass_stride: a weight a run, relative
                                  // to exp(origin[i]). Null: no tails
  const float* origin = nullptr;
  // Masses may be below 0, where samples correct them: then the first of a list's states is that of
  // all its parts and its tail, as tail_means.h adds them, and the others are empty.
  bool corrected = false;
  int64_t mass_stride = 0;
  const bf16* means = nullptr;  // of block b and KV head h at b * block_stride + h * head_stride
  int64_t block_stride = 0, head_stride = 0;
  const int32_t* blocks = nullptr;  // [table rows, max_blocks]
  int max_blocks = 0, block_runs = 0;
  // [table rows] tokens [begin, ends[row]) are indexed: as many runs, the last one in part.
  const int32_t* ends = nullptr;
  int begin = 0;
  // Above 0: this many clusters of keys (kernels/code/value_clusters.h) in place of runs. Their
  // means, of table row b and KV head h, are at b * block_stride + h * head_stride.
  int clusters = 0;
};

struct AttendListsParams {
  // Softmax states of disjoint sets of keys, as merge_states takes them: part j at j * n_rows *
  // n_heads * d, and j * n_rows * n_heads.
  float* o;            // [attend_lists_parts(), n_rows, n_heads, d] out
  float* lse;          // [attend_lists_parts(), n_rows, n_heads] out: natural log; -inf: no keys
  const void* q;       // [n_rows, n_heads, d] of dtype, 16-byte aligned
  const void* k_pool;  // [n_pages, n_kv_heads, 64, d] of dtype, 16-byte aligned
  const void* v_pool;  // [n_pages, n_kv_heads, 64, d]
  const int32_t* page_table;  // [table rows, max_pages]
  const int32_t* slot;        // [n_seqs] rows of the page table
  const int32_t* row_begin;   // [n_seqs + 1]; rows from row_begin[n_seqs] on get empty states
  int n_rows, n_seqs, max_pages, n_heads, n_kv_heads, d;
  DType dtype;  // f32 or bf16; d <= 256, faster with rows of a multiple of 16 bytes
  float scale;
  Range rows;  // of all, those whose lists these are; states of others stay as they are
  QueryLists lists;
  ListTails tails;
};

/// Most keys of a list that one block attends to, for lists of at most `most` keys: enough for the
/// parts to fit into one merge_states.
constexpr int attend_lists_split(int most) {
  constexpr int kLeast = 256, kMostParts = 60, kStep = 64;
  const int split = (most + kMostParts - 1) / kMostParts;
  return split <= kLeast ? kLeast : (split + kStep - 1) / kStep * kStep;
}
/// Parts of the result of lists of at most `most` keys, the tails' included.
constexpr int attend_lists_parts(int most, bool tails) {
  return (most + attend_lists_split(most) - 1) / attend_lists_split(most) + (tails ? 1 : 0);
}

/// numerics f32 from the stored keys on. A list's states have the same bits in any step
/// cost     reads 2 d elements a key and list (once for up to four heads) from anywhere in the pools,
///          and d elements a run and head
/// errors   none (preconditions checked by the caller)
void attend_lists_cuda(const AttendListsParams&, Stream);

}  // namespace tandem
