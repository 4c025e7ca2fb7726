#pragma once
// Means of rows' log-sum-exp, which the next step's scores of keys are relative to (KeyScores). The
// CPU's body is the reference of a GPU's, whose parameters point into device memory.
#include "base/types.h"

namespace tandem {

struct MeanLseParams {
  float* out;  // of slot s, layer l and head h at s * out_slot_stride + l * out_layer_stride + h
  const float* lse;  // of layer l, row r and head h at l * layer_stride + r * n_heads + h
  int64_t out_slot_stride, out_layer_stride, layer_stride;
  const int32_t* slot;       // [n_seqs]
  const int32_t* row_begin;  // [n_seqs + 1]
  int n_seqs, n_layers, n_heads;
};

/// The mean over a sequence's rows of each layer and head; sequences without rows keep theirs.
/// numerics sums in double, in the order of the rows: the same bits from every device
/// errors   none (preconditions checked by the caller)
using MeanLseFn = void(const MeanLseParams&, Range seqs);
MeanLseFn mean_lse_cpu;
void mean_lse_cuda(const MeanLseParams&, Stream);

namespace {
/// Of a layer and head, over rows [begin, end), one at least.
constexpr float mean_of_rows(const MeanLseParams& p, int layer, int head, int begin, int end) {
  double sum = 0;
  for (int r = begin; r < end; ++r)
    sum += p.lse[layer * p.layer_stride + int64_t{r} * p.n_heads + head];
  return static_cast<float>(sum / (end - begin));
}
}  // namespace

}  // namespace tandem
