#pragma once
// Contract of score_channels. No STL: included by sources compiled with per-ISA flags.
#include "kernels/channels/add_squares.h"

namespace tandem {

struct ScoreChannelsParams {
  float* scores;             // out [n_channels]
  const void* gate;          // [rows, n_channels]
  ChannelSums weights;       // no sums: none
  const float* norms;        // [n_channels]; null: all 1
  const int32_t* slot;       // [n_seqs]
  const int32_t* row_begin;  // [n_seqs + 1] sequences without rows add nothing
  int n_seqs, n_channels;
  bool largest;
  DType type;  // of gate: f32 or bf16
};

/// scores[j] = norms[j] times the sum, or the largest, over the step's rows r of |gate[r, j]| w,
/// where w = sqrt(sums[j] / rows) of the row's slot; 1 without weights and of slots without rows.
/// 0 where no sequence has rows.
/// numerics f32, rows in order
/// cost     reads gate once
/// errors   none (preconditions checked by ops)
using ScoreChannelsFn = void(const ScoreChannelsParams&, Range channels);
ScoreChannelsFn score_channels_ref, score_channels_scalar, score_channels_avx2,
    score_channels_avx512;

/// The same on a GPU, all channels, with pointers into device memory: a thread a channel.
void score_channels_cuda(const ScoreChannelsParams&, Stream);

}  // namespace tandem
