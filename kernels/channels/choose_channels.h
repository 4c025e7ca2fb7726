#pragma once
// Contracts of choose_channels and channels_above. No STL: included by sources compiled with
// per-ISA flags.
#include "base/types.h"

namespace tandem {

struct ChooseChannelsParams {
  int32_t* ids;         // out: of list l from l * id_stride on, rising
  int32_t* n;           // out: of list l at l * n_stride
  const float* scores;  // of list l from l * score_stride on, [n_channels]; no NaN
  int64_t id_stride, n_stride, score_stride;
  int n_lists, n_channels;
  int keep;         // choose_channels: 1 to n_channels
  float threshold;  // channels_above
  // channels_above: [n_lists, 2] each list adds 1 and its number; null: not counted.
  int64_t* counted = nullptr;
};

/// The `keep` channels of the largest scores; of equal ones at the threshold the last. Zeros of
/// either sign are equal. Nothing beyond the list's ids is written.
/// cost     one pass over the scores and at most 32 over their first bits, in vectors; fewer where
///          scores differ
/// errors   none (preconditions checked by ops)
using ChooseChannelsFn = void(const ChooseChannelsParams&, Range lists);
ChooseChannelsFn choose_channels_ref, choose_channels_scalar, choose_channels_avx2,
    choose_channels_avx512;

/// The channels whose score is at least `threshold`, any number of them.
/// cost     one pass over the scores
ChooseChannelsFn channels_above_ref, channels_above_scalar, channels_above_avx2,
    channels_above_avx512;

/// Channels that a GPU's block chooses from.
inline constexpr int kMaxChosenFrom = 65536;

/// The same on a GPU, all lists, with pointers into device memory; n_channels up to
/// kMaxChosenFrom.
/// cost     a block a list, whose threads hold the scores in registers: reads them once
void choose_channels_cuda(const ChooseChannelsParams&, Stream);
void channels_above_cuda(const ChooseChannelsParams&, Stream);

}  // namespace tandem
