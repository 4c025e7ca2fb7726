#pragma once
#include <atomic>
#include <cstdint>

namespace tandem {

/// Blocks of work that one thread offers and any thread may take, its owner too: the rest of a long
/// task is divided among those that have none.
class SharedBlocks {
 public:
  /// Offers blocks 0 .. n - 1; what they need is there, and all that were offered before are done.
  void offer(int n) {
    done_.store(0, std::memory_order_relaxed);
    offered_.store(static_cast<uint64_t>(n) << 32, std::memory_order_release);
  }
  /// The next block, which no other call gets; -1: none is left.
  int take() {
    uint64_t at = offered_.load(std::memory_order_acquire);
    while (static_cast<uint32_t>(at) < at >> 32)
      if (offered_.compare_exchange_weak(at, at + 1, std::memory_order_acq_rel,
                                         std::memory_order_acquire))
        return static_cast<int>(static_cast<uint32_t>(at));
    return -1;
  }
  /// One of those taken is done; its results are visible to who sees `all_done`.
  void finish() { done_.fetch_add(1, std::memory_order_acq_rel); }
  bool all_done() const {
    return static_cast<uint64_t>(done_.load(std::memory_order_acquire)) ==
           offered_.load(std::memory_order_relaxed) >> 32;
  }

 private:
  alignas(64) std::atomic<uint64_t> offered_{0};  // how many, and in the low half those taken
  std::atomic<int> done_{0};
};

}  // namespace tandem
