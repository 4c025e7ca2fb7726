#pragma once
// Contract of channel_norms. No STL.
#include "kernels/linear/code_tiles.h"

namespace tandem {

struct ChannelNormsParams {
  float* norms;         // out [n_channels]
  const void* weights;  // number i of channel j in part q at q * part_stride + j * channel_stride +
                        // i * number_stride
  int64_t part_stride, channel_stride, number_stride;
  int n_parts, n_channels, width;  // width: numbers of a channel in a part
  DType type;                      // f32 or bf16
  CodeTiles codes = {};  // on a GPU, in place of weights if it has data: of down if by input
};

/// norms[j] = the product over parts of the root of the sum of the channel's squares there.
/// numerics f64, one rounding
/// cost     reads the weights once, when they are loaded: one portable body
/// errors   none (preconditions checked by ops)
using ChannelNormsFn = void(const ChannelNormsParams&, Range channels);
ChannelNormsFn channel_norms_cpu;

/// The same on a GPU, all channels, with pointers into device memory: a warp a channel. Sums have a
/// fixed order.
void channel_norms_cuda(const ChannelNormsParams&, Stream);

}  // namespace tandem
