#pragma once
// Contracts of rows or columns of codes that a GPU keeps as numbers. No STL.
#include "kernels/channels/weight_part.h"
#include "kernels/linear/code_tiles.h"

namespace tandem {

/// Rows or columns of a matrix [out, in] in numbers.
struct HeldPart {
  bf16* values;          // [n, in], of columns [out, n]
  const int32_t* index;  // [n] distinct
  int n, in;
  WeightPart part;  // rows or columns
};

struct TakeHeldParams {
  HeldPart held;
  CodeTiles tiles;      // outputs [first, first + tiles.out) of the matrix
  const bf16* numbers;  // numbers in place of codes, or null
  int first;
};

/// Fills the values of these outputs with their numbers, rounded to bf16.
void take_held_cuda(const TakeHeldParams&, Stream);

struct PutHeldParams {
  HeldPart held;
  bf16* out;                          // [outputs, inputs] of the matrix
  int first, outputs, begin, inputs;  // within the matrix
};

/// Writes the held numbers over those of some outputs and inputs; the others keep their bits.
void put_held_cuda(const PutHeldParams&, Stream);

}  // namespace tandem
