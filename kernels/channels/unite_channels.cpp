#include "kernels/channels/unite_channels.h"

namespace tandem {

void unite_channels_cpu(const UniteChannelsParams& p, Range lists) {
  for (int64_t l = lists.begin; l < lists.end; ++l) {
    // The list's room holds marks first: an id is never before its own place.
    int32_t* const ids = p.ids + l * p.n_channels;
    for (int c = 0; c < p.n_channels; ++c) ids[c] = 0;
    for (int b = 0; b < p.n_seqs; ++b) {
      if (p.row_begin[b] == p.row_begin[b + 1]) continue;
      const int64_t slot = p.slot[b];
      const int32_t* const list = p.lists + slot * p.slot_stride + l * p.list_stride;
      for (int i = 0; i < p.counts[slot * p.count_stride + l]; ++i) ids[list[i]] = 1;
    }
    int n = 0;
    for (int c = 0; c < p.n_channels; ++c)
      if (ids[c] != 0) ids[n++] = c;
    p.n[l] = n;
    if (p.counted == nullptr) continue;
    p.counted[2 * l] += 1;
    p.counted[2 * l + 1] += n;
  }
}

}  // namespace tandem
