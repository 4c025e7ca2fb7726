#pragma once
// Contracts of the optimizer. No STL: included by sources compiled with per-ISA flags.
#include "base/types.h"

namespace tandem {

/// Numbers of one work item. Sums are taken item by item, so that they do not depend on how items
/// are handed out; 16384 are 64 KiB of a vector.
inline constexpr int kOptimBlock = 16384;

struct SquareSumParams {
  double* sums;    // [blocks]
  const float* x;  // [n]
  int64_t n;
};

/// sums[b] = sum of x^2 over elements [b, b + 1) * kOptimBlock, cut at n.
/// numerics f32 within a block, in chains of 1024 terms that are added in f64; the same bits however
///          blocks are divided among calls; |out - ref| <= 64 eps_f32 |ref|; not finite if x is not
/// cost     reads x once
using SquareSumFn = void(const SquareSumParams&, Range blocks);
SquareSumFn square_sum_ref, square_sum_scalar, square_sum_avx2, square_sum_avx512;

/// What a step of AdamW is taken with, of this and of narrow moments (adamw_narrow.h).
struct AdamWStep {
  float gradient_scale;  // multiplies the gradient: the clip coefficient
  float learning_rate, beta1, beta2, epsilon, weight_decay;
  float unbias1, unbias2;  // 1 / (1 - beta^t), of the 1-based step t
};

struct AdamWParams {
  float* weights;         // [n] w
  float* first;           // [n] m, first moment of the gradient
  float* second;          // [n] v, second moment
  const float* gradient;  // [n]
  int64_t n;
  AdamWStep by;
  const float* base = nullptr;  // [n] that weights decay to; null: 0
};

/// One step of AdamW with decoupled weight decay, over blocks as in square_sum: with
/// g = gradient * gradient_scale, m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2,
/// w -= learning_rate * (m unbias1 / (sqrt(v unbias2) + epsilon) + weight_decay * (w - base)).
/// numerics f32; |m, v - ref| <= 4 eps_f32 (sum of the terms' magnitudes); |w - ref| <= eps_f32
///          |w| + 16 eps_f32 learning_rate (|update|) where m does not cancel
/// cost     reads 4 n, writes 3 n numbers; base is one more to read
/// errors   none
using AdamWFn = void(const AdamWParams&, Range blocks);
AdamWFn adamw_ref, adamw_scalar, adamw_avx2, adamw_avx512;

/// The same on a GPU, all blocks, with pointers into device memory. Sums of squares are taken in
/// another order than on the CPU, the same on every run.
void square_sum_cuda(const SquareSumParams&, Stream);
void adamw_cuda(const AdamWParams&, Stream);

}  // namespace tandem
