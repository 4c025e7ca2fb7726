#pragma once
// Attention of one query over lists of keys: contract. No STL: included by sources with per-ISA
// flags.
#include "base/types.h"

namespace tandem {

/// Keys that one query attends to, all with the same kind of weight.
struct KeySegment {
  const int32_t* ids;  // [n] tokens of the sequence, ascending
  int n;
  // At most one of the two below; neither: every key counts once.
  const float* bias;   // [n] added to the scores: minus the log of the inclusion probability
  const float* norms;  // |k - center| of token t at norms[t]: the LSH weight applies (see below)
};

struct AttendListParams {
  float* o;              // [d] out
  float* lse;            // [1] out: natural log, scale and weights included; -inf if no key
  const void* q;         // [d] of dtype
  const void* k_pool;    // [n_pages, n_kv_heads, 64, d] of dtype, or int8_t where there are scales
  const void* v_pool;    // [n_pages, n_kv_heads, 64, d]
  const int32_t* pages;  // page table of the sequence: token t lies in pages[t / 64], row t % 64
  const KeySegment* segments;
  int n_segments;
  int n_kv_heads, kv_head, d;
  DType dtype;  // f32 or bf16
  float scale;  // > 0, usually 1/sqrt(d)
  // LSH weight of a segment with norms: minus log_u(c) at the cosine of query and centred key,
  // c = (q.k - q_center) / (q_norm * norm), clamped to [-1, 1], and 0 where the norms' product is
  // 0.
  const float* log_u;  // [log_u_intervals + 1], at c = -1 + 2 i / intervals, linear between
  int log_u_intervals;
  float q_norm, q_center;  // |q|, q.center
  // [n_pages, n_kv_heads, 64, 2] of a token's key and of its value, whose elements are number *
  // scale (kernels/page/eight_bit_rows.h); null: the pools are of dtype.
  const float* scales = nullptr;
};

/// o = sum softmax(a)_i v_i over all keys of all segments, a_i = scale q.k_i + weight_i.
/// numerics f32 accumulation; |o - ref| <= 4e-3 max|v| in bf16, 1e-5 max|v| in f32. Scores may be as
///          far apart as f32 goes; no key, or only scores of -inf: o = 0, lse = -inf
///          Rows with scales are attended in f32 for q of either type: 1e-5, to which the error of
///          eight bits comes
/// cost     reads 2 d elements a key from anywhere in the pool, once; and a line of scales
/// errors   none
using AttendListFn = void(const AttendListParams&);
AttendListFn attend_list_ref, attend_list_scalar, attend_list_avx2, attend_list_avx512,
    attend_list_avx512_bf16;

}  // namespace tandem
