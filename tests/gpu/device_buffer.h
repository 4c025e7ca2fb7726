#pragma once
// Shared by the GPU tests: copies of host buffers in device memory, and the queue they run on.
#include <doctest/doctest.h>

#include "kernels/cuda_table.h"
#include "kernels/sample/row_split.h"
#include "kernels/variants.h"
#include "tensor/cuda.h"

namespace tandem::test {

/// The queue of the first GPU that all tests share.
inline cuda::Queue& queue() {
  static cuda::Queue q(0);
  return q;
}

/// Device memory that begins as a copy of host memory, or as a pattern that no kernel writes, and
/// comes back when asked for. Guard bytes at both ends are checked when it goes. With a shift, it
/// begins so many bytes beyond an address that suits wide accesses.
class DeviceBuffer {
 public:
  static constexpr int kPoison = 0xa5;

  DeviceBuffer(const void* host, size_t bytes, size_t shift = 0)
      : bytes_(bytes),
        memory_(static_cast<char*>(cuda::allocate(0, bytes + 2 * kGuard))),
        data_(memory_ + shift) {
    const std::vector<unsigned char> poison(bytes + 2 * kGuard, kPoison);
    queue().copy_in(memory_, poison.data(), poison.size());
    if (host != nullptr) queue().copy_in(data_, host, bytes);
    queue().wait();
  }
  template <class T>
  explicit DeviceBuffer(const std::vector<T>& host, size_t shift = 0)
      : DeviceBuffer(host.data(), host.size() * sizeof(T), shift) {}
  explicit DeviceBuffer(size_t bytes, size_t shift = 0) : DeviceBuffer(nullptr, bytes, shift) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : bytes_(other.bytes_), memory_(std::exchange(other.memory_, nullptr)), data_(other.data_) {}
  ~DeviceBuffer() {
    if (memory_ == nullptr) return;
    std::vector<unsigned char> all(bytes_ + 2 * kGuard);
    queue().copy_out(all.data(), memory_, all.size());
    queue().wait();
    all.erase(all.begin() + (data_ - memory_),
              all.begin() + (data_ - memory_) + std::ptrdiff_t(bytes_));
    CHECK(all == std::vector<unsigned char>(2 * kGuard, kPoison));
    cuda::free_memory(memory_);
  }
  /// Back to the pattern that no kernel writes.
  void poison() const {
    const std::vector<unsigned char> pattern(bytes_, kPoison);
    queue().copy_in(data_, pattern.data(), bytes_);
    queue().wait();
  }

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
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
  char* memory_;
  char* data_;
};

/// Workspace of that size for kernels that work on rows of logits, or null where they need none.
/// Its counters go from one launch to the next, as in a run.
inline void* workspace_of(size_t needed) {
  static void* memory = nullptr;  // a smaller one before it may still be in use, and stays
  static size_t bytes = 0;
  if (needed > bytes) memory = cuda::allocate(0, bytes = needed);
  return memory;
}
inline void* row_workspace(int vocab, int max_rows, int words) {
  return workspace_of(cuda::row_memory_bytes(cuda::gpu(), vocab, max_rows, words));
}

/// A copy as many elements beyond a suitable address as the host's.
inline DeviceBuffer on_device(ActBuffer& b) {
  const size_t element = dtype_bytes(b.type);
  return {b.data(), b.size() * element,
          element * (b.type == DType::f32 ? b.f32.offset : b.half.offset)};
}
template <class T>
DeviceBuffer on_device(Buffer<T>& b) {
  return {b.data(), b.size() * sizeof(T), b.offset * sizeof(T)};
}
/// Copies device memory into a host buffer of the same size.
inline void read_back(const DeviceBuffer& from, ActBuffer& to) { from.read(to.data()); }

/// Runs `work` directly and twice as a graph, each time into poisoned memory; what it leaves there
/// must be the same bits.
template <class Work>
void require_same_in_graph(const DeviceBuffer& out, const Work& work) {
  std::vector<std::vector<unsigned char>> results;
  const cuda::Graph graph(queue(), work);
  for (int run = 0; run < 3; ++run) {
    out.poison();
    if (run == 0)
      work();
    else
      graph.launch(queue());
    results.push_back(out.vector<unsigned char>());
  }
  REQUIRE(results[1] == results[0]);
  REQUIRE(results[2] == results[0]);
}

}  // namespace tandem::test
