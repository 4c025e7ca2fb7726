#pragma once
// Dense layers by oneDNN, which linear_cpu.cpp chooses where the CPU multiplies bf16.
#include "ops/linear.h"

namespace tandem::ops {

struct OneDnnLinear;

namespace linear_onednn {

/// Of the weights in the library's layout for the threads that are set.
size_t bytes(const PackedWeights::Spec& spec);
/// Rows of the matrix that a call of the source makes at most.
int64_t rows_a_step(const PackedWeights::Spec& spec);
size_t workspace_bytes(const PackedWeights::Spec& spec, int64_t max_rows);
/// `weights` gets the packed matrix; `bias` [out] is kept, null without one.
std::shared_ptr<OneDnnLinear> load(const PackedWeights::Spec& spec, void* weights, float* bias,
                                   const PackedWeights::RowSource& rows, void* staging);
/// Packs rows [begin, begin + n) again; begin is a multiple of rows_a_step, and so is n but at the
/// matrix's end.
/// shapes   rows [n, in] in the spec's dtype
void pack(OneDnnLinear& w, int64_t begin, int64_t n, void* rows);
void run(const Tensor& y, const Tensor& x, OneDnnLinear& w, bool accumulate,
         std::span<std::byte> workspace);

}  // namespace linear_onednn

}  // namespace tandem::ops
