#pragma once
// Contract of gather_rows.
#include "base/types.h"

namespace tandem {

struct GatherRowsParams {
  float* out;           // [n_rows, dim]
  const float* in;      // [n_in, dim]
  const int32_t* rows;  // [n_rows], 0 <= row < n_in
  int n_rows, n_in, dim;
};

/// Some rows of a residual, such as those whose logits are wanted: out[r] = in[rows[r]].
/// layout   rows contiguous; out must not alias in
/// numerics exact
/// cost     reads and writes n_rows * dim * 4 bytes
/// errors   none (preconditions checked by ops)

}  // namespace tandem
