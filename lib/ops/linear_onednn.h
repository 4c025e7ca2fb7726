#pragma once
// Dense layers of many rows by oneDNN, which linear_cpu.cpp chooses where the CPU multiplies bf16.
#include "ops/linear.h"

namespace tandem::ops {

/// Weights in panels of pairs (kernels/linear/decode_linear.h), and the products made so far.
struct OneDnnLinear;

namespace linear_onednn {

size_t workspace_bytes(const PackedWeights::Spec& spec, int64_t max_rows);
/// `weights`: the panels; `bias` [out], null without one. Both are kept.
std::shared_ptr<OneDnnLinear> make(const PackedWeights::Spec& spec, bf16* weights, float* bias);
void run(const Tensor& y, const Tensor& x, OneDnnLinear& w, bool accumulate,
         std::span<std::byte> workspace);

}  // namespace linear_onednn

}  // namespace tandem::ops
