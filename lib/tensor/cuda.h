#pragma once
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "base/types.h"
#include "kernels/cuda/gpu.h"
#include "tensor/gpu_code.h"
#include "tensor/tensor.h"

// What the library needs of the CUDA runtime, in a build with CUDA and in one without: there, no
// GPU is ever found and every other call fails with kind device. Errors of work on a stream surface
// in `Queue::wait` or `Ring::wait`, with the name of the last operation put on it.
namespace tandem::cuda {

/// Whether this build has CUDA code.
bool built_in();
/// GPUs that this process may use; 0 also when there is no driver.
int device_count();
/// Why device_count() is 0, for people; empty otherwise.
std::string why_none();

/// The device code of this build; empty without CUDA.
GpuCode built_code();
/// Facts about a GPU and its driver.
/// errors   kind device: no such GPU
GpuFacts facts_of(int index);

struct DeviceInfo {
  std::string name;
  int multiprocessors = 0;
  size_t total_bytes = 0, free_bytes = 0;
};
/// Leaves the thread on the GPU that it uses.
/// errors   kind device: no such GPU, it does not answer, or another process has it to itself;
///          kind memory: others leave no room even to ask
DeviceInfo device_info(int index);

/// Chooses the bodies that kernels run from now on, on every GPU: see force_gpu_isa.
/// errors   kind device: hopper asked for, and no GPU is one
void use_gpu_isa(GpuIsa isa);

/// Device memory, zero-filled.
/// errors   kind memory when the GPU has no room (names free and all bytes), kind device
void* allocate(int device, size_t bytes);
void free_memory(void* p) noexcept;

/// What another process of this machine opens memory of allocate() by.
using PeerHandle = std::array<std::byte, 64>;
PeerHandle share_memory(void* p);
/// The memory of another process' GPU, for kernels of this one; null, and why, where the link
/// allows no such access.
void* open_shared(int device, const PeerHandle& handle, std::string& why_not);
void close_shared(void* p) noexcept;
/// A name that no other GPU has.
std::string unique_name(int device);

/// Makes a GPU the target of this thread's calls of CUDA libraries and kernels.
/// errors   kind device, memory as device_info; kind device where it cannot run this build's code
void use_device(int device);
/// Does so until the end of a scope.
class Using {
 public:
  explicit Using(int device);
  ~Using();
  Using(const Using&) = delete;
  Using& operator=(const Using&) = delete;

 private:
  int before_ = 0;
};

/// Host memory that copies to and from a GPU at full speed and without a stall.
class PinnedBuffer {
 public:
  explicit PinnedBuffer(size_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Makes host memory that is already there pinned for as long as this lives.
class PinnedRange {
 public:
  /// data     page aligned
  /// errors   kind device
  PinnedRange(void* data, size_t bytes);
  ~PinnedRange();
  PinnedRange(const PinnedRange&) = delete;
  PinnedRange& operator=(const PinnedRange&) = delete;

 private:
  void* data_;
};

class Event;

/// A stream of one GPU and the events on it.
class Queue {
 public:
  /// errors   kind device, memory as device_info
  explicit Queue(int device);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  Stream stream() const { return {handle_}; }
  int device() const { return device_; }
  /// Copies in stream order. Pinned memory on the host's side must stay untouched until the copy
  /// has run. Of pageable memory the driver has taken its own copy when copy_in returns, and
  /// copy_out has written it when that returns.
  void copy_in(void* device, const void* host, size_t bytes);
  void copy_out(void* host, const void* device, size_t bytes);
  /// Rows that begin `stride` bytes apart in both.
  void copy_rows_out(void* host, const void* device, size_t stride, size_t row_bytes,
                     size_t n_rows);
  void copy_within(void* to, const void* from, size_t bytes);
  /// Work put on the queue from now on starts after the work that came before the event's last
  /// record; the host does not wait.
  void follow(const Event& event);
  /// Waits for all work so far.
  /// errors   kind device: an operation failed; names the last one
  void wait();
  /// Whether all work so far is done; does not wait.
  /// errors   as wait
  bool idle() const;
  /// Whether work that is put on it is recorded in a graph instead of done.
  bool is_recording() const { return recording_; }

 private:
  friend class Graph;
  int device_;
  void* handle_ = nullptr;
  bool recording_ = false;
};

/// A point in a queue that the host and other queues can wait for. An event that was never recorded
/// counts as reached.
class Event {
 public:
  /// timing   may be used with ms_since
  explicit Event(bool timing = false);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(const Queue& queue);
  bool done() const;
  /// errors   kind device as Queue::wait
  void wait() const;
  float ms_since(const Event& start) const;

 private:
  friend class Queue;
  void* handle_ = nullptr;
};

/// Waits for all work on a stream, as Queue::wait.
void wait(Stream stream);
/// Zeroes device memory in stream order.
void clear(void* device, size_t bytes, Stream stream);
/// Copies rows of `bytes` within the GPU's memory, which begin a stride apart.
void copy_rows(void* to, size_t to_stride, const void* from, size_t from_stride, size_t bytes,
               int64_t rows, Stream stream);

/// A recorded sequence of operations that one call repeats.
class Graph {
 public:
  /// Runs `work`, whose operations on the queue are recorded instead of done.
  /// errors   kind device
  Graph(Queue& queue, const std::function<void()>& work);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(Queue& queue) const;
  size_t nodes() const { return nodes_; }

 private:
  void* handle_ = nullptr;
  size_t nodes_ = 0;
};

/// Remembers `operation` as the last one put on a stream by this thread and throws if its launch
/// was refused. With TANDEM_CUDA_SYNC=1 it also waits, so that the operation that failed is named
/// exactly.
/// errors   kind device
void launched(const char* operation, Stream stream);

}  // namespace tandem::cuda
