#pragma once
// Contract of attention_backward. No STL: included by sources compiled with per-ISA flags.
#include <stddef.h>

#include "base/page.h"
#include "base/types.h"

namespace tandem {

/// The backward pass of one prefill of whole documents: row i of sequence s is its token i, whose K
/// and V are in row i % 64 of page page_table[slot[s]][i / 64]. Row i sees token j if j <= i and,
/// with a window, i - j < window.
struct AttentionBackwardParams {
  void* dqkv;                 // [n_rows, (Hq + 2 Hkv) d] act: gets the gradients of q, k and v as
                              // attention read them, q and k turned
  const void* dout;           // [n_rows, Hq, d] act
  const void* out;            // [n_rows, Hq, d] act, attention's
  const float* lse;           // [n_rows, Hq] natural log, attention's
  const void* q;              // [n_rows, Hq, d] act
  const void* k_pool;         // [n_pages, Hkv, 64, d] act
  const void* v_pool;         // [n_pages, Hkv, 64, d] act
  const int32_t* page_table;  // [table rows, max_pages]
  const int32_t* slot;        // [n_seqs] row of the page table
  const int32_t* row_begin;   // [n_seqs + 1]
  DType act;                  // f32 or bf16
  int n_seqs, max_pages, n_heads, n_kv_heads, head_dim;  // Hq, Hkv, d
  int window = 0;
  float scale;  // > 0, of the scores
};

/// Of one thread, for documents of up to max_rows rows.
size_t attention_backward_scratch_bytes(int max_rows, int group, int head_dim);

/// The flash form: with P = exp(scale q k - lse) and D = dout . out, dv = P^T dout,
/// dS = P (dout v - D) scale, dq = dS k and dk = dS^T q, where k and v are shared by Hq / Hkv
/// heads. A task is a sequence and a KV head: task = seq * Hkv + kv head. `scratch` is one
/// thread's, 64-byte aligned.
/// numerics f32, rounded to act once; sums go over pages of keys, heads and rows in order, so that
///          the bits of a document depend on nothing else; |got - ref| <= eps_act |ref| +
///          16 sqrt(n + d) eps_f32 (largest |ref|), n being the document's rows
/// cost     10 d flops a visible (query, key) pair, of which half pages at the diagonal waste some;
///          scratch of rows * G * d floats is read and written once a page of keys
/// errors   none (preconditions checked by ops)
using AttentionBackwardFn = void(const AttentionBackwardParams&, Range tasks, void* scratch);
AttentionBackwardFn attention_backward_scalar, attention_backward_avx2, attention_backward_avx512;

/// Reference, in double: every pair by the rule as written.
void attention_backward_ref(const AttentionBackwardParams&, Range tasks);

/// Bytes of workspace of a call on `threads` threads.
size_t attention_backward_workspace_bytes(int max_rows, int group, int head_dim, int threads);
/// The whole call on the thread pool with the variant of the ISA in use.
/// units    `workspace` 64-byte aligned, for the longest sequence of the call
void attention_backward_cpu(const AttentionBackwardParams&, void* workspace);

}  // namespace tandem
