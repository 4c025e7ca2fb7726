#pragma once
// Contract of adamw_narrow. No STL.
#include "kernels/optim/optim.h"

namespace tandem {

struct AdamWNarrowParams {
  void* weights;          // [n] w, of weight_type
  bf16* first;            // [n] m
  bf16* second;           // [n] v
  const float* gradient;  // [n]
  int64_t n;
  AdamWStep by;
  DType weight_type;  // bf16 or f32
  bool stochastic;    // rounding of weights to bf16
  uint64_t seed;      // of that, and the counter's other parts:
  uint32_t step;
  int64_t first_element = 0;    // number of w[0] among all trained values
  const float* base = nullptr;  // [n] that weights decay to; null: 0
};

/// The step of AdamW in optim.h with moments in bf16, and weights in bf16 that have no copy in f32.
/// Moments are rounded to nearest. Weights are too, or stochastically: to the upper neighbour with
/// the share of the way to it as the probability, by Philox of seed, step and element, so that
/// steps much smaller than the spacing of bf16 are not lost on average.
/// numerics f32, each number rounded once; the same bits on CPU and GPU, however it is divided
/// cost     on a GPU 16 bytes a weight
using AdamWNarrowFn = void(const AdamWNarrowParams&, Range blocks);  // of kOptimBlock
AdamWNarrowFn adamw_narrow_cpu;

/// The same on a GPU, all blocks, with pointers into device memory.
void adamw_narrow_cuda(const AdamWNarrowParams&, Stream);

}  // namespace tandem
