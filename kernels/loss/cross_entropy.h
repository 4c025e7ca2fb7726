#pragma once
// Contract of cross_entropy. No STL: included by sources compiled with per-ISA flags.
#include "base/types.h"

namespace tandem {

struct CrossEntropyParams {
  const float* logits;     // [n_rows, vocab]
  void* dlogits;           // [n_rows, vocab] act; may be the logits if act is f32; null: not wanted
  float* loss;             // [n_rows]
  const int32_t* targets;  // [n_rows], 0 .. vocab - 1; -1: the row is ignored
  float scale;             // of dlogits: 1 / supervised tokens, for their mean
  int n_rows, vocab;
  DType act;  // bf16 or f32
};

/// Cross entropy of rows of logits and its gradient: loss = lse(logits) - logits[target] and
/// dlogits = (softmax(logits) - onehot(target)) * scale; both 0 for rows that are ignored.
/// layout   rows contiguous
/// numerics f32 with the row's maximum taken out, 1 rounding to act; |loss - ref| <= (4 + vocab/16)
///          eps_f32 + eps_f32 |max|; |dlogits - ref| <= (eps_act + (8 + vocab/16) eps_f32) scale
///          softmax + eps_act scale at the target. A row's result depends on nothing but the row
/// cost     reads logits three times, of which caches serve two; writes dlogits
/// errors   none (preconditions checked by ops)
using CrossEntropyFn = void(const CrossEntropyParams&, Range rows);
CrossEntropyFn cross_entropy_ref, cross_entropy_scalar, cross_entropy_avx2, cross_entropy_avx512,
    cross_entropy_avx512_bf16;

/// The same on a GPU, all rows, with pointers into device memory.
/// cost     reads logits twice, of which its L2 serves one
void cross_entropy_cuda(const CrossEntropyParams&, Stream);

}  // namespace tandem
