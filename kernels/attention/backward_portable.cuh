#pragma once
// The portable bodies of attention's backward pass by dtype.
#include "kernels/attention/backward_tiles.cuh"

namespace tandem::portable {

void backward_f32(const AttentionBackwardParams&, const AttentionBackwardLaunch&, Stream);
void backward_bf16(const AttentionBackwardParams&, const AttentionBackwardLaunch&, Stream);

}  // namespace tandem::portable
