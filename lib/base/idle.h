#pragma once
#include <sched.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tandem {

/// Lets a spinning thread's core rest for a moment.
inline void pause_core() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

/// Waiting for another thread that is expected within microseconds: spins, and after a while lets
/// others have the core, for where there are more threads than cores the awaited one may be among
/// them.
class Idle {
 public:
  void wait() {
    if (++turns_ > kSpins) {
      ::sched_yield();
      return;
    }
    pause_core();
  }
  void reset() { turns_ = 0; }

 private:
  static constexpr int kSpins = 256;  // 10 to 40 us
  int turns_ = 0;
};

}  // namespace tandem
