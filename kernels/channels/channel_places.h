#pragma once
// Contracts of kernels for FFNs whose channels are divided in a set and the rest, on a GPU. No STL.
#include "base/types.h"

namespace tandem {

/// The weights of some of the channels, in memory of the GPU or in pinned host memory.
struct ChannelMatrices {
  void* gate_up;  // [2 n_channels, width]: the gates' rows, then the ups'
  void* down;     // [n_channels, width]
  float* bias;    // [2 n_channels] of gate_up, or null
  bf16* rounded_bias;
  int n_channels;
};

struct ExchangeChannelsParams {
  ChannelMatrices set, rest;
  const int32_t* swaps;  // [n, 2] a place in the set, one in the rest; none twice
  int n, width;
  DType type;  // bf16 or f32
};

/// Channels of the set and of the rest change places.
/// cost     reads and writes each of those rows once, at the rate of the slower memory: a warp a
///          row. Of 16-byte aligned rows in pieces of 16 bytes
/// errors   none (preconditions checked by ops)
void exchange_channels_cuda(const ExchangeChannelsParams&, Stream);

struct ScatterColumnsParams {
  void* out;               // [n_rows, width] act; columns that no other is put in keep their bits
  const void* in;          // [n_rows, n_columns] act
  const int32_t* columns;  // [n_columns], 0 .. width - 1, distinct
  int n_rows, width, n_columns;
  DType act;  // bf16 or f32
};

/// out[r, columns[c]] = in[r, c].
/// cost     reads and writes n_rows * n_columns numbers
/// errors   none (preconditions checked by ops)
void scatter_columns_cuda(const ScatterColumnsParams&, Stream);

}  // namespace tandem
