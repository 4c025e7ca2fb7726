#pragma once
#include <algorithm>
#include <span>
#include <type_traits>

#include "base/first_error.h"

namespace tandem {

/// Sets how many threads share the loops that the calling thread starts. Each thread that starts
/// loops has its own setting, at first default_threads().
void set_threads(int n);
/// How many threads share the loops of the calling thread.
int max_threads();
/// Physical cores this process may use: affinity and cgroup quota respected, SMT siblings left out.
int usable_cores();
/// usable_cores(), or fewer where OMP_NUM_THREADS says so.
int default_threads();

/// Binds the threads that share the calling thread's loops, itself left out: thread i to
/// cpus[i], all of them to `cpus` where `each` is false. A system that refuses leaves them as they
/// are: slower, not wrong.
void bind_loop_threads(std::span<const int> cpus, bool each);

/// One loop for the threads of the calling thread: run(body, item, thread) for each of n items,
/// thread < threads. It must not throw.
struct LoopBody {
  void (*run)(const void* body, int item, int thread);
  const void* body;
};

/// Runs a loop on at most `threads` threads, the calling one among them, and returns when all
/// items are done. Items are handed out one at a time, so no item waits for a thread that has not
/// arrived: beside other processes the calling thread does what the others do not come to do.
/// A loop inside a loop runs on its own thread alone, as thread 0.
/// cost     about a microsecond while the other threads still spin for work, which they do for
///          some tens of microseconds after a loop; then they sleep, and take about 50 to wake
void run_loop(int n, int threads, const LoopBody& body);

/// Runs body(i) or body(i, thread) for i in [0, n) on at most `threads` threads, numbered from 0:
/// no two items have one thread number at the same time.
/// errors   the first of `body`, of all threads; items that had not begun are then left out
template <class Body>
void parallel_for(int n, int threads, const Body& body) {
  struct Loop {
    const Body& body;
    FirstError error;
  } loop{body, {}};
  run_loop(n, threads,
           {[](const void* p, int item, int thread) {
              auto& l = *static_cast<Loop*>(const_cast<void*>(p));
              l.error.run([&] {
                if constexpr (std::is_invocable_v<const Body&, int, int>)
                  l.body(item, thread);
                else
                  l.body(item);
              });
            },
            &loop});
  loop.error.rethrow();
}

template <class Body>
void parallel_for(int n, const Body& body) {
  parallel_for(n, max_threads(), body);
}

/// Cuts [0, n) into pieces of at least `grain` items, at most one a thread, and runs
/// `body(begin, end)` on each.
/// errors   as parallel_for
template <class Body>
void parallel_ranges(int n, int grain, const Body& body) {
  const int pieces = std::clamp(n / std::max(1, grain), 1, max_threads());
  if (pieces == 1) return n > 0 ? body(0, n) : void();
  parallel_for(pieces, pieces, [&](int i) {
    body(static_cast<int>(static_cast<long long>(n) * i / pieces),
         static_cast<int>(static_cast<long long>(n) * (i + 1) / pieces));
  });
}

}  // namespace tandem
