#pragma once
// Contract of dropout. No STL: included by sources compiled with per-ISA flags.
#include "base/types.h"

namespace tandem {

/// Elements drawn together: 16 Philox blocks of 4 words of 2 elements. A row begins a new group.
inline constexpr int kDropoutGroup = 128;

struct DropoutParams {
  void* out;       // [n_rows, width] act, may be `in`
  const void* in;  // [n_rows, width] act
  int n_rows, width;
  DType act;           // f32 or bf16
  bool add;            // out += instead of out =
  uint32_t threshold;  // of 65536: elements below are dropped
  float scale;         // of those that are kept
  uint64_t seed;
  uint32_t step, place;  // of the draw; with the seed they name it
};

/// out (+)= in * scale where the element's 16 random bits are at least `threshold`, else 0.
/// numerics which are dropped is a pure function of (seed, step, place, row, column, width): the
///          same on every ISA, any row alone. f32, one rounding
/// cost     reads and writes each element once; one Philox4x32-10 block (base/philox.h) per 8
///          elements. Column c of row r takes group g = r ceil(width / 128) + c / 128, slot
///          s = c % 128 / 16, lane l = c % 16 and is half s % 2 of word s / 2 of block 16 g + l
/// errors   none; 16 groups n_rows must be less than 2^32
using DropoutFn = void(const DropoutParams&, Range rows);
DropoutFn dropout_ref, dropout_scalar, dropout_avx2, dropout_avx512, dropout_avx512_bf16;

/// The same on a GPU, all rows, with pointers into device memory: the bits of the CPU's variants.
void dropout_cuda(const DropoutParams&, Stream);

}  // namespace tandem
