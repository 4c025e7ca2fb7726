#include "speculate/draft/gpu_lookup_drafter.h"

#include <algorithm>

namespace tandem::speculate {

int GpuLookupDrafter::prepare(std::span<const decode::DrawSeq> seqs, DeviceTrees& trees) {
  int32_t* at = trees.on_host().tokens;
  for (const decode::DrawSeq& s : seqs) {
    const std::span<const int32_t> next = look_up(s.tokens, longest_, tree_.size() - 1);
    std::fill_n(at, tree_.size(), s.tokens.back());
    std::copy(next.begin(), next.end(), at + 1);
    at += tree_.size();
  }
  return 0;
}

}  // namespace tandem::speculate
