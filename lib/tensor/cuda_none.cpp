#include "base/error.h"
#include "tensor/cuda.h"

// A build without CUDA: no GPU is found, so nothing below but the first three is reached.
namespace tandem::cuda {
namespace {

[[noreturn]] void fail() { throw Error(ErrorKind::device, "cuda", why_none()); }

}  // namespace

bool built_in() { return false; }
int device_count() { return 0; }
std::string why_none() { return "this build of tandem has no CUDA"; }

GpuCode built_code() { return {}; }
GpuFacts facts_of(int) { fail(); }
DeviceInfo device_info(int) { fail(); }
void use_gpu_isa(GpuIsa isa) {
  if (isa == GpuIsa::portable) return;  // no GPU, no body
  throw Error(ErrorKind::device, "TANDEM_GPU_ISA", "'hopper' is not available: " + why_none())
      .hint("unset TANDEM_GPU_ISA");
}
void* allocate(int, size_t) { fail(); }
void free_memory(void*) noexcept {}
void use_device(int) { fail(); }
Using::Using(int) { fail(); }
Using::~Using() = default;
PinnedRange::PinnedRange(void* data, size_t) : data_(data) { fail(); }
PinnedRange::~PinnedRange() = default;
PeerHandle share_memory(void*) { fail(); }
void* open_shared(int, const PeerHandle&, std::string&) { fail(); }
void close_shared(void*) noexcept {}
std::string unique_name(int) { fail(); }
void clear(void*, size_t, Stream) { fail(); }
void copy_rows(void*, size_t, const void*, size_t, size_t, int64_t, Stream) { fail(); }
void wait(Stream) { fail(); }
PinnedBuffer::PinnedBuffer(size_t) { fail(); }
PinnedBuffer::~PinnedBuffer() = default;
Queue::Queue(int device) : device_(device) { fail(); }
Queue::~Queue() = default;
void Queue::copy_in(void*, const void*, size_t) { fail(); }
void Queue::copy_out(void*, const void*, size_t) { fail(); }
void Queue::copy_rows_out(void*, const void*, size_t, size_t, size_t) { fail(); }
void Queue::copy_within(void*, const void*, size_t) { fail(); }
void Queue::follow(const Event&) { fail(); }
void Queue::wait() { fail(); }
bool Queue::idle() const { fail(); }
Event::Event(bool) { fail(); }
Event::~Event() = default;
void Event::record(const Queue&) { fail(); }
bool Event::done() const { fail(); }
void Event::wait() const { fail(); }
float Event::ms_since(const Event&) const { fail(); }
Graph::Graph(Queue&, const std::function<void()>&) { fail(); }
Graph::~Graph() = default;
void Graph::launch(Queue&) const { fail(); }
void launched(const char*, Stream) { fail(); }

}  // namespace tandem::cuda
