#pragma once
// Contract of widen_rows. No STL: included by CUDA sources. The CPU's body is the reference of a
// GPU's, whose parameters point into device memory.
#include "base/types.h"

namespace tandem {

struct WidenRowsParams {
  float* out;       // [n_rows, to]
  const float* in;  // [n_rows, from], apart from out
  int n_rows, from, to;
};

/// Rows of logits over one vocabulary as rows over another that differs in padding: ids that `in`
/// lacks have no probability, those that `out` lacks are left out.
/// numerics exact; out[r][i] = in[r][i] for i < from, -inf beyond
/// cost     reads n_rows * min(from, to) * 4 bytes, writes n_rows * to * 4
/// errors   none (preconditions checked by the caller)
using WidenRowsFn = void(const WidenRowsParams&, Range rows);
WidenRowsFn widen_rows_cpu;
void widen_rows_cuda(const WidenRowsParams&, Stream);

}  // namespace tandem
