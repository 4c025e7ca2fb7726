#pragma once
#include <cstddef>

#include "base/check.h"

namespace tandem {

/// An array in the host's memory and its copy on the device; one and the same on the CPU.
template <class T>
struct Mirrored {
  T* host = nullptr;
  T* device = nullptr;
};

/// What the host sends to a GPU in one copy: parts side by side in a buffer of its own, pinned, and
/// in one there. They are taken from the end to the front, so that a caller's own data may lie
/// behind them in both and go along. Requests of equal sizes get equal places, for graphs.
class Outbox {
 public:
  static constexpr size_t kAlignment = 16;
  static constexpr size_t aligned(size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  struct Part {
    std::byte *host, *device;
  };

  Outbox() = default;
  /// bytes    of each buffer, a multiple of kAlignment, as their addresses are
  Outbox(std::byte* host, std::byte* device, size_t bytes)
      : host_(host), device_(device), bytes_(bytes) {}

  Part take(size_t bytes) {
    taken_ += aligned(bytes);
    TANDEM_CHECK(taken_ <= bytes_, "{} bytes to send exceed the planned {}", taken_, bytes_);
    return all();
  }
  /// Room for n values.
  template <class T>
  Mirrored<T> take(size_t n) {
    const Part part = take(n * sizeof(T));
    return {reinterpret_cast<T*>(part.host), reinterpret_cast<T*>(part.device)};
  }
  /// Begins anew; what was sent before must have arrived.
  void clear() { taken_ = 0; }
  /// Bytes of all parts.
  size_t taken() const { return taken_; }
  /// Where the buffers end, however much was taken.
  Part end() const { return {host_ + bytes_, device_ + bytes_}; }
  /// Where the device's buffer begins, whatever was taken.
  std::byte* device_begin() const { return device_; }
  /// Where the parts begin.
  Part all() const { return {host_ + (bytes_ - taken_), device_ + (bytes_ - taken_)}; }

 private:
  std::byte *host_ = nullptr, *device_ = nullptr;
  size_t bytes_ = 0, taken_ = 0;
};

}  // namespace tandem
