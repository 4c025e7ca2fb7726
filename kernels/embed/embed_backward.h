#pragma once
// Contract of the embedding's backward pass on a GPU. No STL.
#include "base/types.h"

namespace tandem {

struct EmbedBackwardParams {
  float* dtable;       // [V, dim], added to
  const float* dx;     // [n_rows, dim]
  const int32_t* ids;  // [n_rows], 0 <= id < V
  int n_rows, dim;
};

/// dtable[ids[r]] += dx[r], rows in order: the same bits on every run.
/// cost     reads dx once and ids n_rows times, from a cache
void embed_backward_cuda(const EmbedBackwardParams&, Stream);

}  // namespace tandem
