#pragma once
// Contract of products of listed channels of an FFN. No STL: included by sources compiled with
// per-ISA flags.
#include "base/types.h"
#include "kernels/ffn/gate.h"
#include "kernels/linear/code_tiles.h"

namespace tandem {

/// Rows of x at most.
inline constexpr int kListedRows = 16;

/// What gate_up_channels makes of a channel's gate g and up u.
enum class ChannelOutput : uint8_t {
  gate,   // g s (gate.h): reads no row of up
  gated,  // g s u
  up,     // gates * u: reads no row of gate
};

struct GateUpChannelsParams {
  void* y;             // out [rows, y_stride] of type: channel ids[i] at place i
  const void* x;       // [rows, in] of type
  const void* w;       // [2 n_channels, in] of type: the gates' rows, then the ups'
  const float* bias;   // [2 n_channels], or null
  const void* gates;   // [rows, n_channels] of type, g s; of ChannelOutput::up alone
  const int32_t* ids;  // [n], below n_channels; null: all channels in order
  const int32_t* n;    // [1]; null with ids
  int64_t y_stride;
  int rows, in, n_channels;
  int most;    // n at most; n_channels without a list
  DType type;  // bf16 or f32
  ChannelOutput output;
  Gate gate;
  // ids and n were written before a kernel that waits for all ahead of it before it lets others
  // begin: a GPU may read them and W before the kernel directly ahead has ended.
  bool settled = false;
  /// On a GPU, in place of w if it has data: paired. Then the type is bf16.
  CodeTiles codes = {};
};

/// Gates and ups of listed channels. Places from n on keep their bits.
/// numerics f32 accumulation in an order that `in` alone fixes: the bits of a row depend on no
///          other row, nor on how many there are. |y - ref| <= c (in + 3) eps_f32 of the sums of
///          magnitudes, c <= 3 for factors that follow, and one rounding to type. Where
///          the CPU multiplies bf16 (avx512_bf16), subnormal products count as 0
/// cost     reads each listed row of W from memory once for all rows of x
/// errors   none (preconditions checked by ops): rows are kListedRows at most
using GateUpChannelsFn = void(const GateUpChannelsParams&, Range places);
GateUpChannelsFn gate_up_channels_ref, gate_up_channels_scalar, gate_up_channels_avx2,
    gate_up_channels_avx512, gate_up_channels_avx512_bf16;

/// The same on a GPU, with pointers into device memory. The grid is that of `most` channels; n is
/// read on the device. No work still on the stream may write W. A kernel that is not settled, and
/// has a list, waits before it lets others begin.
/// exact    codes, whose sums of a group are multiplied by its scale
/// cost     of bf16 and codes where `in` is a multiple of 8 and rows are 16-byte aligned, at the
///          memory's rate, on tensor cores; else plain. Codes of gates and ups lie together, and
///          are read together.
void gate_up_channels_cuda(const GateUpChannelsParams&, Stream);

struct DownChannelsParams {
  float* out;          // [rows, width], added to
  const void* y;       // [rows, y_stride] of type: channel ids[i] at place i
  const void* w;       // [n_channels, width] of type
  const float* bias;   // [width], or null
  const int32_t* ids;  // as above
  const int32_t* n;
  int64_t y_stride;
  int rows, width, n_channels;
  int most;
  DType type;
  CodeTiles codes = {};  // as above, but by input
};

/// Columns of out in a block of work of the CPU.
inline constexpr int kDownColumns = 64;

/// out += y W + b over listed channels.
/// numerics f32 accumulation; the bits of a row depend on no other row, nor on how many there are,
///          and on no thread. |out - ref| <= (n + 3) eps_f32 of the sums of magnitudes, `out`
///          before among them
/// cost     reads each listed row of W from memory once for all rows
/// errors   none (preconditions checked by ops): rows are kListedRows at most
using DownChannelsFn = void(const DownChannelsParams&, Range blocks);
DownChannelsFn down_channels_ref, down_channels_scalar, down_channels_avx2, down_channels_avx512,
    down_channels_avx512_bf16;

/// The same on a GPU, with pointers into device memory. W, ids and n may be read before the kernel
/// directly ahead on the stream has ended. So no work still on it may write W; and the list is one
/// that gate_up_channels, directly ahead, has read, or no kernel ahead writes it.
/// exact    codes, likewise
/// cost     of bf16 where rows of W are 16-byte and those of y 4-byte aligned, at the memory's rate,
///          on tensor cores; else plain. Likewise of codes, for any W. Scales are read once for
///          neighbouring channels of a group.
void down_channels_cuda(const DownChannelsParams&, Stream);

struct TransposeRowsParams {
  void* to;          // [width, height]: columns [first, first + n_rows) are written
  const void* from;  // [n_rows, from_stride], in the GPU's memory or pinned; of each row `width`
  int64_t from_stride, height, width, first, n_rows;
  DType type;  // bf16 or f32
};

/// Rows of a matrix to where they are columns.
/// cost     reads and writes each number once
/// errors   none
void transpose_rows_cuda(const TransposeRowsParams&, Stream);

}  // namespace tandem
