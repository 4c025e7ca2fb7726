#pragma once
// Shared by the GPU tests: copies of host buffers in device memory, and the queue they run on.
#include <doctest/doctest.h>

#include "kernels/cuda_table.h"
#include "kernels/variants.h"
#include "tensor/cuda.h"

namespace tandem::test {

/// The queue of the first GPU that all tests share.
inline cuda::Queue& queue() {
  static cuda::Queue q(0);
  return q;
}

/// Device memory that begins as a copy of host memory, or as a pattern that no kernel writes, and comes
/// back when asked for. Guard bytes behind its end are checked when it goes.
class DeviceBuffer {
 public:
  static constexpr int kPoison = 0xa5;

  DeviceBuffer(const void* host, size_t bytes) : bytes_(bytes), data_(cuda::allocate(0, bytes + kGuard)) {
    const std::vector<unsigned char> poison(bytes + kGuard, kPoison);
    queue().copy_in(data_, poison.data(), poison.size());
    if (host != nullptr) queue().copy_in(data_, host, bytes);
    queue().wait();
  }
  template <class T>
  explicit DeviceBuffer(const std::vector<T>& host) : DeviceBuffer(host.data(), host.size() * sizeof(T)) {}
  explicit DeviceBuffer(size_t bytes) : DeviceBuffer(nullptr, bytes) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  ~DeviceBuffer() {
    if (data_ == nullptr) return;
    std::vector<unsigned char> guard(kGuard);
    queue().copy_out(guard.data(), static_cast<char*>(data_) + bytes_, kGuard);
    queue().wait();
    CHECK(guard == std::vector<unsigned char>(kGuard, kPoison));
    cuda::free_memory(data_);
  }

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  void* raw() const { return data_; }
  size_t bytes() const { return bytes_; }
  /// Waits for the queue and copies back.
  void read(void* host) const {
    queue().copy_out(host, data_, bytes_);
    queue().wait();
  }
  template <class T>
  std::vector<T> vector() const {
    std::vector<T> host(bytes_ / sizeof(T));
    read(host.data());
    return host;
  }

 private:
  static constexpr size_t kGuard = 256;
  size_t bytes_;
  void* data_;
};

inline DeviceBuffer on_device(ActBuffer& b) {
  return {b.data(), b.size() * dtype_bytes(b.type)};
}
template <class T>
DeviceBuffer on_device(Buffer<T>& b) {
  return {b.data(), b.size() * sizeof(T)};
}
/// Copies device memory into a host buffer of the same size.
inline void read_back(const DeviceBuffer& from, ActBuffer& to) { from.read(to.data()); }

}  // namespace tandem::test
