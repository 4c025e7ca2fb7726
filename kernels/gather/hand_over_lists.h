#pragma once
// Lists of keys divided between a GPU, which chose them, and the host: contract.
#include "base/types.h"

namespace tandem {

struct HandOverListsParams {
  // The host's, in pinned memory:
  int32_t* host_ids;    // list i begins at i * stride
  int32_t* host_count;  // of list i
  // In the GPU's memory:
  int32_t* kept;         // of list i: its first ids, which stay the GPU's
  const int32_t* ids;    // list i begins at i * stride
  const int32_t* count;  // of list i
  int64_t stride;
  int n_lists;
  float host_share;  // of the ids of a list, the last ones
};

/// Ids of a list of n that the host gets.
constexpr int handed_over(int n, float host_share) {
  const int part = static_cast<int>(static_cast<float>(n) * host_share + 0.5f);
  return part < n ? part : n;
}

/// Fenced: a note that is posted later (kernels/copy/mailbox.h) finds the lists there.
/// errors   none (preconditions checked by the caller)
void hand_over_lists_cuda(const HandOverListsParams&, Stream);

}  // namespace tandem
