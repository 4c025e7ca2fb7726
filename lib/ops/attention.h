#pragma once
#include <cstdint>

#include "ops/step_arrays.h"

namespace tandem::ops {

/// One attention over the paged store: a ragged batch of rows against the keys that a rule selects.
/// kernels/attention/attention.h defines arrays and rule exactly.
struct AttentionArgs {
  Tensor out;            // [R, Hq, d] of q's dtype or f32
  float* lse = nullptr;  // [R, Hq] natural log; may be null
  Tensor q;              // [R, Hq, d]
  Tensor k, v;           // pools of one layer [pages, Hkv, 64, d]
  StepArrays step;
  int32_t key_lo = 0, key_hi = 0, sinks = 0, window = 0;
  const int32_t* seq_key_lo = nullptr;  // [B]
  float scale = 1.0f;
};

/// Bytes of workspace for any call within these bounds.
size_t attention_workspace_bytes(int max_seqs, int max_rows, int max_tokens, int n_heads,
                                 int n_kv_heads, int head_dim);

/// numerics f32 results of a row are bit-identical for any batching, chunking and thread count
/// errors   none (shapes are checked by TANDEM_CHECK)
void attention(const AttentionArgs& args, void* workspace);

/// Merges `n` <= 4 partial results of disjoint key sets.
/// shapes   out [R, Hq, d]; o [n, R, Hq, d] f32; lse [n, R, Hq] natural log
void merge_states(const Tensor& out, const float* o, const float* lse, int n);

}  // namespace tandem::ops
