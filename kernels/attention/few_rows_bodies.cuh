#pragma once
// What attention_decode.cu has for the bodies of attention of few rows.
#include <cuda_runtime.h>

#include "kernels/attention/few_rows_state.cuh"

namespace tandem {

/// A body's launch of bf16 with head_dim 64, 128 or 256.
using FewRowsMma = void (*)(const FewRowsCall&, cudaStream_t);

/// The call with `mma` where it takes it, else on plain multiply-adds.
void attention_few_rows(const AttentionParams&, const AttentionLaunch&, Stream, FewRowsMma mma);

}  // namespace tandem
