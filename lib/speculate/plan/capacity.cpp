#include "speculate/plan/capacity.h"

#include <algorithm>
#include <cmath>

namespace tandem::speculate {

int most_sequences(const MachineRates& m, const ModelCosts& target, const ModelCosts* draft,
                   const Holdings& h) {
  const ModelCosts& keeper = draft != nullptr ? *draft : target;  // of a draft's cache
  const double weights = target.memory_bytes + (draft != nullptr ? draft->memory_bytes : 0);
  const double room = h.memory_bytes - weights / m.ranks - h.buffer_bytes;
  const double sequence = kv_share(m, target) * target.kv_bytes * h.context +
                          kv_share(m, keeper) * keeper.kv_bytes * h.draft_context;
  constexpr double kMost = 1 << 30;
  return static_cast<int>(std::clamp(std::floor(room / sequence), 0.0, kMost));
}

}  // namespace tandem::speculate
