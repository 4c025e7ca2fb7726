#pragma once
// The best of many scores (select_top.h) for many lists at once, on a GPU: contract. Pointers lie
// in device memory.
#include "base/types.h"

namespace tandem {

struct SelectTopCudaParams {
  int32_t* ids;         // out: list i begins at i * id_stride; ascending
  int32_t* count;       // out [n_lists]: ids of a list, min(n, m) * run
  const float* scores;  // list i begins at i * score_stride; no NaN
  const int32_t* n;     // [n_lists] scores
  const int32_t* m;     // [n_lists] scores to choose, 0 or more
  int64_t id_stride, score_stride;
  int n_lists;
  int run = 1;  // ids that a score stands for: that of place i for [i * run, (i + 1) * run)
};

/// The m[i] largest scores of each list (all if there are no more); of equal ones at the threshold
/// the first.
/// numerics an order of f32 in which zeros are equal: the choice of select_top
/// cost     a block a list, which reads its scores four times, three of them from L2
/// errors   none (preconditions checked by the caller)
void select_top_cuda(const SelectTopCudaParams&, Stream);

}  // namespace tandem
