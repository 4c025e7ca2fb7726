#pragma once
// Attention over a paged KV cache on the CPU: contract, plan and entry points. No STL: included by
// sources compiled with per-ISA flags.
#include <limits.h>
#include <stddef.h>

#include "base/page.h"
#include "base/types.h"

namespace tandem {

/// Keys of a split, at absolute multiples. Softmax states of splits are merged in order whether one
/// thread ran them or many did, so the division of work never shows in the result. 1024 keys are
/// 256 KiB and more of K and V: next to them a partial result of a few KiB costs nothing.
inline constexpr int kSplitTokens = 1024;

/// Keys that a KV head's queries see in addition to those that the rule below gives them: runs of
/// tokens, chosen one by one, in any order. Arrays go by row of the page table, so that steps of
/// any sequences read them, and counts may change while a recorded graph stays. GPU, few rows
/// alone.
struct KeyLists {
  /// Run i of a list holds the tokens [run * id, run * (id + 1)), all committed; a token is in a
  /// list once. The list of row r and KV head h begins at r * row_stride + h * head_stride. Null:
  /// no lists.
  const int32_t* ids = nullptr;
  const int32_t* count = nullptr;  // runs of row r, KV head h at r * count_stride + h; 0: none
  /// [table rows] a lower bound as seq_key_lo is: the rule gives the tokens from here on, the list
  /// is of those before. Null: 0.
  const int32_t* rest = nullptr;
  int64_t row_stride = 0, head_stride = 0;
  int count_stride = 0;
  int run = 1;  // tokens; divides 64
  /// Copies of the lists' keys and values, in separate pages: pools as k_pool and v_pool of
  /// AttentionParams. An id is then a page of these pools, which holds the next 64 tokens of the
  /// list, and counts are tokens, so that the last page of a list may be a part of one. Null: ids
  /// are runs of the sequence's tokens.
  const void *k_pool = nullptr, *v_pool = nullptr;

  constexpr bool paged() const { return k_pool != nullptr; }
  /// Whether rows see fewer keys than the rule gives them: lists may also be of a separate call
  /// (kernels/gather/attend_lists.h).
  constexpr bool bounds_keys() const { return ids != nullptr || rest != nullptr; }
};

/// How much a sequence's rows attend to its committed keys, for policies that choose by it: of each
/// key and KV head the largest score of any row and head of the group, less what `lse` says of the
/// head. A key's share of the attention is e to this number where `lse` is that of the row. Of
/// calls without window, bounds and lists, in which every row sees every committed key; on a GPU of
/// few rows alone.
struct KeyScores {
  f16* at = nullptr;  // out, of row r of the page table, KV head h and slot t < base at r *
                      // row_stride + h * head_stride + t; there is room to the end of the last
                      // page, which may be written to. 4-byte aligned, strides are even. Null: not
                      // wanted
  const float* lse = nullptr;  // of row r of the page table and head h at r * lse_stride + h
  int64_t row_stride = 0, head_stride = 0, lse_stride = 0;
};

/// One attention call: rows (new tokens) of a ragged batch against paged keys and values of one
/// layer.
///
/// The base[s] committed tokens of sequence s are followed by tentative[s] rows that earlier steps
/// wrote and that are not committed yet, then by the rows of this step: row i has its own K and V
/// at slot base[s] + tentative[s] + i of that sequence. Slot t lies in row t % 64 of page
/// page_table[table_row][t / 64], where table_row is slot[s], or s without that array. In a tree,
/// the slots from base on hold its nodes, and a row's mask is the path to it: bit j is the node at
/// slot base + j, ancestors come before descendants, the last bit is the row itself. The position
/// of a key is its slot, or for a node of a tree base plus the bits of the mask before its own. Row
/// i, at position x, sees a key at position y if all of these hold:
///   - the key is committed (slot < base), or in a tree a bit of the row's mask, or in a chain
///     tentative or of a row jj <= i;
///   - key_lo <= y < key_hi, and seq_key_lo[s] <= y where given;
///   - window == 0, or y < sinks, or x - y < window.
/// In addition, row i sees the keys of its sequence's lists, all of them, in any order.
struct AttentionParams {
  void* out;                  // [n_rows, Hq, d] of out_dtype; must not alias q
  float* lse;                 // [n_rows, Hq] natural log, scale included; may be null
  const void* q;              // [n_rows, Hq, d] of dtype
  const void* k_pool;         // [n_pages, Hkv, 64, d] of dtype
  const void* v_pool;         // [n_pages, Hkv, 64, d]
  const int32_t* page_table;  // [table rows, max_pages]; -1: released, no row may see into it
  const int32_t* row_begin;   // [n_seqs + 1]
  const int32_t* base;        // [n_seqs] committed tokens
  const int32_t* pos;  // [n_rows] positions; read with tree_mask only, a chain's are its slots
  const uint64_t* tree_mask;  // [n_rows, mask_words] paths; null: chain
  DType dtype;                // f32 or bf16
  DType out_dtype;            // f32, or dtype
  int n_seqs, max_pages, n_heads, n_kv_heads, head_dim, mask_words;
  int key_lo = 0, key_hi = INT_MAX;
  const int32_t* slot = nullptr;        // [n_seqs] row of the page table; null: the sequence's own
  const int32_t* seq_key_lo = nullptr;  // [n_seqs]
  const int32_t* tentative = nullptr;   // [n_seqs] uncommitted rows of earlier steps; null: none
  int sinks = 0, window = 0;
  KeyLists lists = {};
  KeyScores scores = {};
  float scale;  // > 0, usually 1/sqrt(d)
};

namespace {
/// The row of the page table that sequence s reads.
constexpr int table_row(const AttentionParams& p, int s) {
  return p.slot == nullptr ? s : p.slot[s];
}
/// The page table of sequence s.
constexpr const int32_t* pages_of(const AttentionParams& p, int s) {
  return p.page_table + static_cast<size_t>(table_row(p, s)) * static_cast<size_t>(p.max_pages);
}
/// The list of a row of the page table and a KV head.
constexpr const int32_t* list_of(const KeyLists& l, int row, int kv_head) {
  return l.ids + row * l.row_stride + kv_head * l.head_stride;
}
constexpr int listed_tokens(const KeyLists& l, int row, int kv_head) {
  return l.count[static_cast<int64_t>(row) * l.count_stride + kv_head] * (l.paged() ? 1 : l.run);
}
/// The scores of a row of the page table and a KV head.
constexpr f16* scores_of(const KeyScores& s, int row, int kv_head) {
  return s.at + row * s.row_stride + kv_head * s.head_stride;
}
/// Token i of a list of runs.
constexpr int listed_token(const KeyLists& l, const int32_t* list, int i) {
  return list[i / l.run] * l.run + i % l.run;
}
}  // namespace

/// Queries (row x head of one KV group, row-major) of one KV head against a run of splits.
struct AttentionTask {
  int32_t seq, kv_head;
  int32_t query_begin, n_queries;  // query = row * G + head in group
  int32_t split_begin, split_end;  // in units of kSplitTokens
  int64_t partial;                 // offset of the first split's state in partials; -1: write out
  /// Other queries of the task before it against keys of that task, for calls that want scores: the
  /// same thread runs it next, and its part of a key's score is added to the one there.
  bool follows;
};

/// Work of one call: plain data, all of it in the caller's workspace.
struct AttentionPlan {
  AttentionTask* tasks;
  AttentionTask* merges;  // per block of queries that was divided: all its splits, and their states
  int n_tasks, n_merges;
  float* partials;  // per split of a divided block: m [q], l [q], o [d, q], q = queries padded
};

/// One ISA's body. `run` and `merge` take tasks of a plan made for the same kernel; `scratch` is
/// one thread's, 64-byte aligned.
/// numerics a row's bits do not depend on the other rows, batch, chunks, threads and plan of the
///          call. f32: all in f32. bf16: f32 accumulation and softmax; where the ISA multiplies
///          bf16, p is rounded to bf16 and 2^x is good to 7.6e-5. |out - ref| <= 4 * eps_bf16 *
///          max|v|. Empty set: out = 0, lse = -inf. Scores of keys are rounded to f16 once
/// cost     4*d flops a visible (query, key) pair; each page read once per block of queries
/// errors   none (preconditions checked by the caller)
struct AttentionKernel {
  void (*run)(const AttentionParams&, const AttentionPlan&, Range tasks, void* scratch);
  void (*merge)(const AttentionParams&, const AttentionPlan&, Range merges, void* scratch);
  int query_block;  // most queries of a task, a multiple of 16
};

/// What bounds the calls of a run, for memory plans.
struct AttentionBounds {
  int max_seqs = 0, max_rows = 0;  // of a step
  int max_tokens = 0;              // of one sequence, new rows included
  int n_heads = 0, n_kv_heads = 0, head_dim = 0;
  int multiprocessors = 0;  // of the GPU, where one runs them
  int max_tree_rows = 0;    // on a GPU, of steps with trees, all sequences; more are slower
  int threads = 0;          // of the CPU, where it runs them
  bool lists = false;       // calls may name keys by lists
  bool scores = false;      // calls may want scores of keys
};

/// Bytes of workspace that any call within the bounds needs on the CPU, on any ISA and for either
/// dtype. It does not shrink when a bound grows.
size_t attention_cpu_workspace_bytes(const AttentionBounds&);
/// Bytes of one thread's scratch.
size_t attention_scratch_bytes(int head_dim);

/// Divides a call into tasks, the long ones first. Keys are divided only where blocks of queries
/// alone would leave threads idle, and only for blocks of at most 16 queries.
AttentionPlan attention_plan(const AttentionParams&, const AttentionKernel&, int threads,
                             void* workspace);

/// Reference: rows [begin, end) of the batch, every key by the rule as written, double
/// accumulation.
void attention_ref(const AttentionParams&, Range rows);

/// Reference of p.scores, for sequence s, from the products in double.
void key_scores_ref(const AttentionParams&, int s);

/// Softmax states of disjoint key sets and where they merge to.
struct MergeStatesParams {
  void* out;             // [n_rows, n_heads, d] of out_dtype; may alias a part of that dtype
  float* lse;            // [n_rows, n_heads]; may be null, may alias a part's
  const void* const* o;  // [n_parts] each [n_rows, n_heads, d] of part_dtype
  const float* const* part_lse;  // [n_parts] each [n_rows, n_heads], natural log; -inf: empty part
  DType part_dtype, out_dtype;   // f32 or bf16
  int n_parts, n_heads, head_dim;
};

/// out = sum_p exp(lse_p - lse) o_p with lse = log sum_p exp(lse_p), for rows [begin, end).
/// numerics weights in double, rounded to f32, parts added in order. All parts empty: out = 0,
///          lse = -inf. The o of an empty part is not read
/// cost     reads n_parts * n_rows * n_heads * d elements; memory bound, so one portable body
void merge_states(const MergeStatesParams&, Range rows);

extern const AttentionKernel attention_f32_scalar, attention_f32_avx2, attention_f32_avx512;
extern const AttentionKernel attention_bf16_scalar, attention_bf16_avx2, attention_bf16_avx512,
    attention_bf16_avx512_bf16, attention_bf16_amx;

}  // namespace tandem
