#pragma once
#include <cstddef>

namespace tandem::kv {

/// Cuts one thread's scratch into arrays, each 64-byte aligned. Over a null base it only counts.
class ScratchCutter {
 public:
  explicit ScratchCutter(std::byte* base) : base_(base) {}

  template <class T>
  T* take(size_t n) {
    std::byte* at = base_ + used_;
    used_ += (n * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(at);
  }
  size_t bytes() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

}  // namespace tandem::kv
