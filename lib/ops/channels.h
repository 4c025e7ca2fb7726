#pragma once
#include <cstdint>
#include <span>

#include "kernels/channels/channel_products.h"
#include "kernels/channels/score_channels.h"
#include "kernels/channels/unite_channels.h"
#include "ops/linear.h"
#include "ops/step_arrays.h"

/// Products of listed channels of an FFN, and what chooses the lists. Channel j of F is row j of
/// gate and of up, [2 F, D], and column j of down, [D, F], whose weights are by input. Pointers and
/// tensors of a call are on the device of its weights; on a GPU the work goes to the stream, where
/// graphs may record it.
namespace tandem {
class Comm;
}

namespace tandem::ops {

/// Ids in rising order, and how many: both where the model computes.
struct ChannelList {
  const int32_t* ids = nullptr;  // [n]
  const int32_t* n = nullptr;    // [1]
  int most = 0;                  // n at most
  // On a GPU: since the list was written, products of one that is not settled came before on the
  // stream. These ones may read it, and weights, before the work directly ahead has ended.
  bool settled = false;
};

// Products: of kListedRows rows (16) at most; each listed row of the weights is read from memory
// once for all of them, and no row's bits depend on the others. Numerics: channel_products.h. The
// weights of gate and up are trainable on the CPU.

/// y = the activations of the gates x W_gate^T, of all channels.
/// shapes   y [rows, F], x [rows, D], both in the weights' dtype; w [2 F, D]
void gates(const Tensor& y, const Tensor& x, const PackedWeights& w, Gate gate, Stream stream = {});
/// y[:, i] = the activation of g, times u, of channel ids[i]; places beyond the list keep their
/// bits.
/// shapes   as gates; y [rows, most]
void gated_channels(const Tensor& y, const Tensor& x, const PackedWeights& w, Gate gate,
                    const ChannelList& list, Stream stream = {});
/// Computes the same where the activations of all channels are known.
/// shapes   gates [rows, F]
void up_channels(const Tensor& y, const Tensor& gates, const Tensor& x, const PackedWeights& w,
                 const ChannelList& list, Stream stream = {});
/// out += y W_down^T + b over listed channels.
/// shapes   out [rows, D] f32, y [rows, most], w [D, F] by input
/// stream   on a GPU weights and list may be read before the work directly ahead has ended: the list
///          is one that gated_channels or up_channels, directly ahead, has read, or no kernel that
///          is still on the stream writes it
void down_channels(const Tensor& out, const Tensor& y, const PackedWeights& w,
                   const ChannelList& list, Stream stream = {});

using tandem::ChannelSums;

struct AddSquares {
  ChannelSums to;
  Tensor x;           // [rows, columns]
  int64_t first = 0;  // column of channel 0
  /// [kScaledRows] scratch: divide each row's squares by their sum; a row of zeros adds nothing.
  /// Null: squares as they are.
  float* scales = nullptr;
  Comm* comm = nullptr;  // ranks that have the other channels of the rows; null: there are none
  /// 0: sums grow. Else they become the mean of their rows' squares times (1 - blend), and that of
  /// the step's times blend, both times the rows that were added before, which stay as many.
  float blend = 0;
};
/// Rows that are scaled at a time.
inline constexpr int kScaledRows = 4096;
/// Adds the squares of a step's rows, one after the other in the order of tokens, to the sums of
/// their slots.
/// numerics f32; how rows are divided into steps shows in no bit where blend is 0
void add_squares(const AddSquares& what, const StepArrays& step, int n_channels,
                 Stream stream = {});

/// The norms of channels: of their rows of gate and of up, multiplied; of their columns of down.
/// shapes   out [F] f32
/// numerics f64, one rounding
void channel_norms_gate_up(float* out, const PackedWeights& gate_up, Stream stream = {});
void channel_norms_down(float* out, const PackedWeights& down, Stream stream = {});

struct ScoreChannels {
  float* scores = nullptr;       // [F] out
  Tensor gate;                   // [rows, F]
  bool largest = false;          // the largest |gate| of the step's rows, in place of their sum
  ChannelSums weights = {};      // multiply each row's by the root of its slot's mean square
  const float* norms = nullptr;  // [F] and by these; null: neither
};
/// |gate| of the step's rows together; places without rows add nothing.
void score_channels(const ScoreChannels& what, const StepArrays& step, Stream stream = {});

struct ChooseChannels {
  int32_t* ids = nullptr;         // out: of list l from l * id_stride on, rising
  int32_t* n = nullptr;           // out: of list l at l * n_stride
  const float* scores = nullptr;  // of list l from l * score_stride on, [n_channels]; no NaN
  int64_t id_stride = 0, n_stride = 0, score_stride = 0;
  int n_lists = 1, n_channels = 0, keep = 0;
  // channels_above: [n_lists, 2] each list adds 1 and its number; null: not counted.
  int64_t* counted = nullptr;
};
/// The `keep` channels of the largest scores, at least one; of equal ones the last.
void choose_channels(const ChooseChannels& what, Stream stream = {});
/// Those whose score is at least `threshold`; any number.
void channels_above(const ChooseChannels& what, float threshold, Stream stream = {});

void unite_channels(const UniteChannelsParams& params, Stream stream = {});

// Of FFNs on a GPU whose channels are divided in a set and the rest:

/// Weights of the channels of each, which kernels of one GPU reach.
struct ExchangeChannels {
  const PackedWeights& set_gate_up;   // [2 n, D]
  const PackedWeights& set_down;      // [D, n] by input
  const PackedWeights& rest_gate_up;  // [2 m, D]
  const PackedWeights& rest_down;     // [D, m] by input
  const int32_t* swaps = nullptr;     // [n_swaps, 2] a place in the set, one in the rest
  int n_swaps = 0;
};
/// Those channels change places.
void exchange_channels(const ExchangeChannels& what, Stream stream);
/// out[r, columns[c]] = in[r, c].
/// shapes   out [rows, width], in [rows, n]; columns [n] distinct
void scatter_columns(const Tensor& out, const Tensor& in, const int32_t* columns, Stream stream);

}  // namespace tandem::ops
