#pragma once
// Bounds of the keys of pages and what they say of scores (Quest), on a GPU: contract. Pointers lie
// in device memory. A page here is one of the policy's, of 1 to 64 tokens, a divisor of 64.
#include "kernels/gather/score_keys.h"

namespace tandem {

struct PageBoundsParams {
  float* bounds;  // out: page i of KV head h at h * head_stride + i * 2 d: the smallest value of
                  // each channel [d], then the largest [d]
  int64_t head_stride;
  const void* k_pool;    // [n_pages, n_kv_heads, 64, d] of dtype
  const int32_t* pages;  // page table of the sequence
  int token, n, page;    // pages [token / page, token / page + n) of `page` tokens
  int n_kv_heads, d;
  DType dtype;  // f32 or bf16
};

/// numerics exact
/// cost     reads the keys once
/// errors   none (preconditions checked by the caller)
void page_bounds_cuda(const PageBoundsParams&, Stream);

struct ScorePagesParams {
  float* scores;  // out: of list i and page j at i * score_stride + j
  int32_t* n;     // out [lists] pages of the row's sequence
  int32_t* m;     // out [lists] ratio * tokens that the row sees / page, rounded down, of 1 to n
  const void* q;  // [rows of the step, n_heads, d] of dtype
  const float* bounds;    // of a block's KV head h at block * block_stride + h * head_stride
  const int32_t* ends;    // [slots] tokens that have bounds, from the first on
  const int32_t* blocks;  // [slots, max_blocks] with block_pages pages each
  int64_t score_stride, block_stride, head_stride;
  ChoosingRows choosing;
  int max_blocks, block_pages, page;
  int max_n;  // most pages of a sequence
  int n_heads, n_kv_heads, d;
  DType dtype;  // f32 or bf16; d <= 1024
  double ratio;
};

/// sum_c max(q_c lo_c, q_c hi_c): no key of the page has a larger product with q.
/// numerics f32
/// cost     reads the bounds once a row for the heads of a KV head together
/// errors   none (preconditions checked by the caller)
void score_pages_cuda(const ScorePagesParams&, Stream);

}  // namespace tandem
