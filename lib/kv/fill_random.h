#pragma once
#include <cstdint>

#include "kv/cache.h"

namespace tandem::kv {

/// Gives an empty sequence `n` committed tokens of seeded random K and V, and
/// last queries where a policy reads them (uniform, deviation 1),
/// for benches that need a long context without the time of its prefill. No policy has seen them.
/// numerics a token's values depend on seed, layer and position alone, not on its page
/// errors   kind memory when pages run out
void fill_random(Cache& cache, int slot, int n, uint64_t seed);

}  // namespace tandem::kv
