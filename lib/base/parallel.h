#pragma once
#include <algorithm>

#include "base/first_error.h"

namespace tandem {

/// Sets how many threads share the loops that the calling thread starts (OpenMP's pool, which
/// oneDNN shares). Each thread that starts loops has its own setting, at first one per logical CPU.
void set_threads(int n);
/// How many threads share the loops of the calling thread.
int max_threads();
/// Physical cores this process may use: affinity and cgroup quota respected, SMT siblings left out.
int usable_cores();

/// Runs `body(i)` for i in [0, n) on the pool, items handed out one at a time.
/// errors   those of `body`, of all threads the first; items that had not begun are then left out
template <class Body>
void parallel_for(int n, const Body& body) {
  FirstError error;
#pragma omp parallel for schedule(dynamic, 1) if (n > 1)
  for (int i = 0; i < n; ++i) error.run([&] { body(i); });
  error.rethrow();
}

/// Cuts [0, n) into pieces of at least `grain` items, at most one a thread, and runs
/// `body(begin, end)` on each.
/// errors   as parallel_for
template <class Body>
void parallel_ranges(int n, int grain, const Body& body) {
  const int pieces = std::clamp(n / std::max(1, grain), 1, max_threads());
  if (pieces == 1) return n > 0 ? body(0, n) : void();
  FirstError error;
#pragma omp parallel for schedule(static, 1)
  for (int i = 0; i < pieces; ++i)
    error.run([&] {
      body(static_cast<int>(static_cast<long long>(n) * i / pieces),
           static_cast<int>(static_cast<long long>(n) * (i + 1) / pieces));
    });
  error.rethrow();
}

}  // namespace tandem
