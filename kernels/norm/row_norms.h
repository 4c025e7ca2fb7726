#pragma once
// Contracts of the norms of whole rows of q and k. No STL: included by sources compiled with
// per-ISA flags.
#include "base/types.h"

namespace tandem {

struct RowNormsParams {
  void* out;                     // [n_rows, q + 2 kv] act: q and k normalised, v copied; may be in
  const void* in;                // [n_rows, q + 2 kv] act: the projection
  float* squares;                // [n_rows, 2] sums of squares of q and of k
  const float *q_norm, *k_norm;  // [q], [kv]
  int n_rows, q_dim, kv_dim;     // q, kv
  int first_k;                   // numbers of k before this one are no part of its sum of squares
  int q_all, k_all;              // numbers that the sums are of: on several ranks those of all
  float eps;                     // added to the mean square
  DType act;                     // bf16 or f32
};

/// Writes `squares` of each row, so that ranks can add theirs before row_norms.
/// numerics f32; |out - ref| <= (4 + n/16) eps_f32 ref for a row of n numbers
/// errors   none (preconditions checked by ops)
using RowNormsFn = void(const RowNormsParams&, Range rows);
RowNormsFn qk_squares_ref, qk_squares_scalar, qk_squares_avx2, qk_squares_avx512;

/// x / sqrt(squares / all + eps) * norm for the q and the k of each row.
/// numerics f32, one rounding to act; |out - ref| <= (eps_act + 6 eps_f32) |ref|
RowNormsFn row_norms_ref, row_norms_scalar, row_norms_avx2, row_norms_avx512;

struct RowNormsBackwardParams {
  void* dqkv;                    // [n_rows, q + 2 kv] act: gradient of what row_norms writes; gets
                                 // that of the projection
  const void* qkv;               // [n_rows, q + 2 kv] act: the projection
  const float *q_norm, *k_norm;  // [q], [kv]
  float* dnorms;                 // [n_rows, q + kv] gets each row's part of the gradients of q_norm
                                 // and k_norm; or null
  int n_rows, q_dim, kv_dim;
  float eps;
  DType act;
};

/// The backward pass of both, in place; v's gradient stays.
/// numerics as rms_norm_backward, one rounding to act
/// errors   none (preconditions checked by ops)
using RowNormsBackwardFn = void(const RowNormsBackwardParams&, Range rows);
RowNormsBackwardFn row_norms_backward_ref, row_norms_backward_scalar, row_norms_backward_avx2,
    row_norms_backward_avx512;

/// All three on a GPU, all rows, with pointers into device memory.
void qk_squares_cuda(const RowNormsParams&, Stream);
void row_norms_cuda(const RowNormsParams&, Stream);
void row_norms_backward_cuda(const RowNormsBackwardParams&, Stream);

}  // namespace tandem
