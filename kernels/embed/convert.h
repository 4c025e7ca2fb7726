#pragma once
// Contract of convert. No STL: included by sources compiled with per-ISA flags.
#include "base/types.h"

namespace tandem {

/// Elements of one work item; 4096 keep input and output of an item in L1 and make the cost of
/// handing it out small.
inline constexpr int kConvertBlock = 4096;

struct ConvertParams {
  void* out;       // [n] of type `to`, aligned to its element
  const void* in;  // [n] of type `from`, any byte alignment (a mapped file)
  int64_t n;
  DType from, to;
};

/// Copies numbers from one type to another: f16, bf16, f32 -> bf16, f32. Work item b is elements
/// [b, b + 1) * kConvertBlock, cut at n.
/// layout   contiguous; out must not alias in
/// numerics exact to f32; round to nearest even to bf16 (subnormals kept, overflow to infinity, NaN
///          stays NaN); the same bits on every ISA
/// cost     reads and writes each element once
/// errors   none (preconditions checked by ops)
using ConvertFn = void(const ConvertParams&, Range blocks);
ConvertFn convert_ref, convert_scalar, convert_avx2, convert_avx512;

/// The same on a GPU, all of it, with pointers into device memory, both aligned to their element.
void convert_cuda(const ConvertParams&, Stream);

}  // namespace tandem
