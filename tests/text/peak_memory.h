#pragma once
#include <cstddef>
#include <fstream>
#include <string>

namespace tandem::test {

/// By how much the process's memory rises above what it has now. Linux forgets the earlier peak
/// when it is told to.
class PeakMemory {
 public:
  PeakMemory() { std::ofstream("/proc/self/clear_refs") << 5; }

  /// Bytes, at most so far.
  size_t grown() const {
    const size_t peak = kib_of("VmHWM:");
    return peak > before_ ? (peak - before_) << 10 : 0;
  }

 private:
  static size_t kib_of(const std::string& name) {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;)
      if (word == name) {
        size_t kib = 0;
        status >> kib;
        return kib;
      }
    return 0;
  }

  size_t before_ = kib_of("VmRSS:");
};

}  // namespace tandem::test
