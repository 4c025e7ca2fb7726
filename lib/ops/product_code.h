#pragma once
#include <cstddef>

#include "base/types.h"
#include "tensor/tensor.h"

namespace tandem::ops {

/// Bytes of host memory that products hold in addition to buffers: the code that oneDNN generates
/// for each shape of weights and each number of rows, of which a bounded number is kept. 0 on a
/// GPU, and where our own kernels multiply.
/// dtype       of weights and inputs
/// shapes      of weights, one that is added to its output counted apart
/// row_counts  different numbers of rows that each is multiplied with
size_t product_code_bytes(DType dtype, Device device, size_t shapes, int row_counts);

/// Bytes of oneDNN's own code that its first products bring into a process's memory.
size_t product_library_bytes(DType dtype, Device device);

}  // namespace tandem::ops
