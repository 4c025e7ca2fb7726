#pragma once
// The body of attention's backward pass for d 256 (backward_wide.cu).
#include "kernels/attention/hopper/backward_copy.cuh"

namespace tandem::hopper {

/// The whole call, which the body of backward.cu takes.
void backward_wide(const AttentionBackwardParams&, const AttentionBackwardLaunch&,
                   const BackwardMaps&, Stream);

}  // namespace tandem::hopper
