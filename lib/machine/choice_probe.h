#pragma once
#include "base/interrupt.h"

namespace tandem::machine {

/// Scores by codes that the CPU computes while it chooses keys as the hybrid does, for four query
/// heads of 128 under each KV head: 1e9 keys a second, counted once a query head, of all threads
/// together. Signs of all keys, other bits of the candidates, selections and masses of the rest are
/// in it; codes come from a cache. A tenth of a second, and 40 MiB, 4 more a thread.
/// errors   kind interrupted
double measure_code_gscores(int threads, const Interrupted& interrupted = {});

}  // namespace tandem::machine
