#pragma once
#include <algorithm>
#include <chrono>

namespace tandem {

/// Seconds of the monotonic clock since construction or the last restart; none where it went back,
/// as clocks of virtual machines do.
class Stopwatch {
 public:
  double seconds() const {
    return std::max(0.0, std::chrono::duration<double>(Clock::now() - start_).count());
  }
  void restart() { start_ = Clock::now(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

}  // namespace tandem
