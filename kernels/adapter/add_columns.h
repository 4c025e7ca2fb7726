#pragma once
// Contract of adding columns. No STL.
#include "base/types.h"

namespace tandem {

struct AddColumnsParams {
  void* y;               // [n_rows, stride] of type
  const float* in;       // [n_rows, n]
  const int32_t* index;  // [n] distinct columns of y
  int64_t stride;
  int n_rows, n;
  DType type;  // f32 or bf16
};

/// y[r, index[c]] += in[r, c].
/// numerics f32, one rounding to type
/// cost     memory bound, so one portable body
/// errors   none (preconditions checked by ops)
using AddColumnsFn = void(const AddColumnsParams&, Range rows);
AddColumnsFn add_columns_cpu;
/// The same on a GPU, all rows, with pointers into device memory.
void add_columns_cuda(const AddColumnsParams&, Stream);

}  // namespace tandem
