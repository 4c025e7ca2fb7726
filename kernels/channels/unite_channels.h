#pragma once
// Contract of unite_channels. No STL.
#include "base/types.h"

namespace tandem {

struct UniteChannelsParams {
  int32_t* ids;      // out: of list l from l * n_channels on, rising
  int32_t* n;        // out [n_lists]
  int64_t* counted;  // [n_lists, 2] each list adds 1 and its number; null: not counted
  // List l of slot s: lists[s * slot_stride + l * list_stride] on, counts[s * count_stride + l] of
  // them, distinct and below n_channels.
  const int32_t* lists;
  const int32_t* counts;
  int64_t slot_stride, list_stride, count_stride;
  const int32_t* slot;       // [n_seqs]
  const int32_t* row_begin;  // [n_seqs + 1] sequences without rows are left out
  int n_seqs, n_lists, n_channels;
};

/// The union of the lists of a step's sequences, of every layer.
/// cost     reads the lists once; memory bound, so one portable body
/// errors   none (preconditions checked by ops)
using UniteChannelsFn = void(const UniteChannelsParams&, Range lists);
UniteChannelsFn unite_channels_cpu;

/// The same on a GPU, all lists, with pointers into device memory.
/// cost     a block a list; n_channels / 8 bytes of shared memory
void unite_channels_cuda(const UniteChannelsParams&, Stream);

/// Channels that a GPU's block has the bits of.
inline constexpr int kMaxUnitedChannels = 48 * 1024 * 8 - 8192;

}  // namespace tandem
