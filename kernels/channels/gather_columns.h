#pragma once
// Contract of gather_columns. No STL.
#include "base/types.h"

namespace tandem {

struct GatherColumnsParams {
  void* out;               // [n_rows, n_columns] act
  const void* in;          // [n_rows, width] act
  const int32_t* columns;  // [n_columns], 0 .. width - 1
  int n_rows, width, n_columns;
  DType act;  // bf16 or f32
};

/// out[r, c] = in[r, columns[c]].
/// layout   rows contiguous; out must not alias in
/// cost     reads and writes n_rows * n_columns numbers; memory bound, so one portable body
/// errors   none (preconditions checked by ops)
using GatherColumnsFn = void(const GatherColumnsParams&, Range rows);
GatherColumnsFn gather_columns_cpu;

/// The same on a GPU, all rows, with pointers into device memory.
void gather_columns_cuda(const GatherColumnsParams&, Stream);

}  // namespace tandem
