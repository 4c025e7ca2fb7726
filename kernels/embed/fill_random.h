#pragma once
// Contract of fill_random. No STL: included by sources compiled with per-ISA flags.
#include "base/types.h"

namespace tandem {

/// Elements of one work item.
inline constexpr int kFillBlock = 4096;
/// Elements drawn together: 16 Philox blocks of 4 words of 2 elements.
inline constexpr int kFillGroup = 128;

struct FillRandomParams {
  void* out;        // [count] of type `to`
  uint64_t seed;    // of the model
  uint32_t tensor;  // which tensor of the model
  int64_t first;    // index within the tensor of out[0]
  int64_t count;
  float stddev;
  DType to;  // bf16 or f32
};

/// Synthetic weights: out[j] is element first + j of a random tensor, uniform with mean 0 and the
/// given standard deviation. Work item b is out[[b, b + 1) * kFillBlock], cut at count.
/// numerics a pure function of (seed, tensor, index, stddev): the same bits on every ISA, any row
///          alone. 65,536 levels, none of them zero; the bf16 value is the f32 value rounded, so
///          the two precisions hold the same model
/// cost     writes each element once; one Philox4x32-10 block (base/rng.h) per 8 elements.
///          Element i takes group g = i / 128, slot s = i % 128 / 16, lane l = i % 16 and is half
///          s % 2 of word s / 2 of block 16 g + l: a vector of blocks is stored without a shuffle
/// errors   none (preconditions checked by ops)
using FillRandomFn = void(const FillRandomParams&, Range blocks);
FillRandomFn fill_random_ref, fill_random_scalar, fill_random_avx2, fill_random_avx512;

/// The same on a GPU, all of it, with `out` in device memory: the CPU's bits.
void fill_random_cuda(const FillRandomParams&, Stream);

}  // namespace tandem
