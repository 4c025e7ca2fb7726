#pragma once
// Contract of the embedding's backward pass. No STL.
#include "base/types.h"

namespace tandem {

struct EmbedBackwardParams {
  float* dtable;         // [V, dim], added to
  const float* dx;       // [any, dim]
  const int32_t* ids;    // [n_ids], all different, 0 <= id < V
  const int32_t* begin;  // [n_ids + 1] where each id's part of `rows` begins
  const int32_t* rows;   // [begin[n_ids]] rows of dx
  int n_ids, dim;
};

/// dtable[ids[i]] += dx[r] for the rows r of id i in turn: the same bits on every run, on CPU and
/// GPU, and as if row after row was added in order where an id's rows ascend.
/// cost     reads dx once
using EmbedBackwardFn = void(const EmbedBackwardParams&, Range ids);
EmbedBackwardFn embed_backward_cpu;

/// The same on a GPU, all ids, with pointers into device memory.
void embed_backward_cuda(const EmbedBackwardParams&, Stream);

}  // namespace tandem
