#pragma once
// Contracts of reading and writing parts of a matrix on a GPU. No STL.
#include "base/types.h"

namespace tandem {

/// Which numbers of a matrix [out, in]: all, rows of it, columns, or single elements
/// (row * in + column).
enum class WeightPart : uint8_t { all, rows, columns, elements };

struct WeightPartParams {
  void* weights;         // [out, in] of type `act`
  float* values;         // [out, in], [n, in], [out, n] or [n]
  const int32_t* index;  // [n] distinct; not read of all
  int64_t out, in, n;
  WeightPart part;
  DType act;  // bf16 or f32
};

/// values = those numbers, exactly.
void read_weight_part_cuda(const WeightPartParams&, Stream);
/// Those numbers = values, rounded to nearest even; the others keep their bits.
void write_weight_part_cuda(const WeightPartParams&, Stream);

struct AddElementsParams {
  float* sums;           // [n]
  const float* matrix;   // [elements]
  const int32_t* index;  // [n] elements
  int64_t n;
};
/// sums[i] += matrix[index[i]].
void add_elements_cuda(const AddElementsParams&, Stream);

}  // namespace tandem
