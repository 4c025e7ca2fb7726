#include "tensor/cuda.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <sstream>

#include "tensor/cuda_error.h"
#include "tensor/memory_plan.h"
#include "tensor/pinned_pages.h"

namespace tandem::cuda {
namespace {

thread_local const char* last_operation = "none";

cudaStream_t as_stream(Stream s) { return static_cast<cudaStream_t>(s.handle); }

[[noreturn]] void fail(cudaError_t code, const std::string& what) {
  (void)cudaGetLastError();  // clears errors that are not sticky
  throw error_of(code, what, last_operation);
}

void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) [[unlikely]]
    fail(code, what);
}

/// Whether the GPU is to count as lost, for tests of what happens then: TANDEM_GPU_LOST is how many
/// waits and questions whether work is done succeed first. Work on the GPU goes on.
bool plays_lost() {
  static std::atomic<int> asked{0};  // since the variable was set
  const char* value = std::getenv("TANDEM_GPU_LOST");
  if (value == nullptr) asked = 0;
  return value != nullptr && asked++ >= std::atoi(value);
}

/// What a wait for work ended with, or a question whether it is done.
void check_work(cudaError_t code) {
  check(plays_lost() ? cudaErrorUnknown : code, "work on the GPU failed");
}

bool waits_after_each() {
  static const bool on = [] {
    const char* value = std::getenv("TANDEM_CUDA_SYNC");
    return value != nullptr && std::strcmp(value, "0") != 0;
  }();
  return on;
}

/// 0 where there is none.
int driver_version() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

}  // namespace

bool built_in() { return true; }

GpuCode built_code() {
  GpuCode code{.machine = {}, .ptx = "80", .toolkit = CUDART_VERSION};
  std::istringstream archs(TANDEM_CUDA_ARCHS);
  for (std::string arch; std::getline(archs, arch, ',');) code.machine.push_back(arch);
  return code;
}

GpuFacts facts_of(int index) {
  cudaDeviceProp prop;
  check(cudaGetDeviceProperties(&prop, index), "cannot query the GPU");
  return {.name = prop.name, .major = prop.major, .minor = prop.minor, .driver = driver_version()};
}

int device_count() {
  int n = 0;
  if (cudaGetDeviceCount(&n) == cudaSuccess) return n;
  (void)cudaGetLastError();
  return 0;
}

std::string why_none() {
  int n = 0;
  const cudaError_t code = cudaGetDeviceCount(&n);
  (void)cudaGetLastError();
  if (code == cudaErrorInsufficientDriver)
    return why_driver_unfit(CUDART_VERSION, driver_version());
  if (code != cudaSuccess) return cudaGetErrorString(code);
  return n == 0 ? "no GPU is visible to this process" : "";
}

DeviceInfo device_info(int index) {
  cudaDeviceProp prop;
  check(cudaGetDeviceProperties(&prop, index), "cannot query the GPU");
  const Using gpu(index);
  DeviceInfo info{.name = prop.name, .multiprocessors = prop.multiProcessorCount};
  check(cudaMemGetInfo(&info.free_bytes, &info.total_bytes), "cannot query the GPU's memory");
  return info;
}

void use_gpu_isa(GpuIsa isa) {
  constexpr int kHopper = 9;  // compute capability
  bool found = isa == GpuIsa::portable;
  for (int i = 0; i < device_count() && !found; ++i) {
    int major = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i),
          "cannot query the GPU");
    found = major == kHopper;
  }
  if (!found)
    throw make_error(
        ErrorKind::device, "TANDEM_GPU_ISA", "'hopper' is not available: {}",
        device_count() == 0 ? why_none() : "no GPU of this machine has compute capability 9.0")
        .hint("unset TANDEM_GPU_ISA");
  set_gpu_isa(isa);
}

void* allocate(int device, size_t bytes) {
  use_device(device);
  void* p = nullptr;
  const cudaError_t code = cudaMalloc(&p, bytes);
  if (code == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    size_t free_bytes = 0, total_bytes = 0;
    check(cudaMemGetInfo(&free_bytes, &total_bytes), "cannot query the GPU's memory");
    throw make_error(ErrorKind::memory, Device{Device::Kind::cuda, device}.name(),
                     "cannot allocate {}: {} of {} are free", format_bytes(bytes),
                     format_bytes(free_bytes), format_bytes(total_bytes))
        .hint(
            "another process may have taken the memory (see nvidia-smi): wait for it, use another "
            "GPU with --device cuda:N, or lower run.context or run.batch");
  }
  check(code, "cannot allocate device memory");
  check(cudaMemset(p, 0, bytes), "cannot clear device memory");
  // Queues do not wait for the default stream: what they write must not be cleared afterwards.
  check(cudaStreamSynchronize(nullptr), "cannot clear device memory");
  return p;
}

void free_memory(void* p) noexcept { (void)cudaFree(p); }

PeerHandle share_memory(void* p) {
  PeerHandle handle{};
  static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(PeerHandle));
  const cudaError_t code = cudaIpcGetMemHandle(reinterpret_cast<cudaIpcMemHandle_t*>(&handle), p);
  if (code != cudaSuccess) (void)cudaGetLastError();  // a handle of zeros opens nothing
  return handle;
}

void* open_shared(int device, const PeerHandle& handle, std::string& why_not) {
  use_device(device);
  cudaIpcMemHandle_t given;
  std::memcpy(&given, handle.data(), sizeof given);
  void* p = nullptr;
  const cudaError_t code = cudaIpcOpenMemHandle(&p, given, cudaIpcMemLazyEnablePeerAccess);
  if (code == cudaSuccess) return p;
  (void)cudaGetLastError();
  why_not = cudaGetErrorString(code);
  return nullptr;
}

void close_shared(void* p) noexcept { (void)cudaIpcCloseMemHandle(p); }

std::string unique_name(int device) {
  cudaDeviceProp prop;
  check(cudaGetDeviceProperties(&prop, device), "cannot query the GPU");
  std::string name;
  for (const char c : prop.uuid.bytes) name += fmt::format("{:02x}", static_cast<uint8_t>(c));
  return name;
}

Using::Using(int device) {
  check(cudaGetDevice(&before_), "cannot query the GPU");
  use_device(device);
}

Using::~Using() { (void)cudaSetDevice(before_); }

void use_device(int device) {
  // The first time this makes a context, which a GPU that others hold refuses.
  static std::mutex mutex;
  static std::set<int> known;  // to run our code
  const std::scoped_lock lock(mutex);
  if (!known.contains(device))
    if (auto error = why_unfit(built_code(), facts_of(device))) throw *std::move(error);
  if (const cudaError_t code = cudaSetDevice(device); code != cudaSuccess) [[unlikely]]
    fail(code, "cannot use " + Device{Device::Kind::cuda, device}.name());
  if (known.contains(device)) return;
  (void)gpu_of(device);  // while no graph is recorded
  known.insert(device);
}

PinnedRange::PinnedRange(void* data, size_t bytes) : data_(data) {
  first_touch(data, bytes);
  check(cudaHostRegister(data, bytes, cudaHostRegisterMapped), "cannot pin host memory");
}

PinnedRange::~PinnedRange() { (void)cudaHostUnregister(data_); }

PinnedBuffer::PinnedBuffer(size_t bytes) : bytes_(bytes) {
  void* p = nullptr;
  if (bytes > 0) check(cudaMallocHost(&p, bytes), "cannot allocate pinned host memory");
  data_ = static_cast<std::byte*>(p);
}

PinnedBuffer::~PinnedBuffer() { (void)cudaFreeHost(data_); }

Queue::Queue(int device) : device_(device) {
  use_device(device);
  cudaStream_t s = nullptr;
  check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "cannot create a stream");
  handle_ = s;
}

Queue::~Queue() { (void)cudaStreamDestroy(as_stream(stream())); }

void Queue::copy_in(void* device, const void* host, size_t bytes) {
  check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, as_stream(stream())),
        "cannot copy to the GPU");
}

void Queue::copy_out(void* host, const void* device, size_t bytes) {
  check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, as_stream(stream())),
        "cannot copy from the GPU");
}

void Queue::copy_rows_out(void* host, const void* device, size_t stride, size_t row_bytes,
                          size_t n_rows) {
  if (row_bytes == stride) return copy_out(host, device, n_rows * stride);
  check(cudaMemcpy2DAsync(host, stride, device, stride, row_bytes, n_rows, cudaMemcpyDeviceToHost,
                          as_stream(stream())),
        "cannot copy rows from the GPU");
}

void Queue::copy_within(void* to, const void* from, size_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, as_stream(stream())),
        "cannot copy within GPU memory");
}

void Queue::follow(const Event& event) {
  check(cudaStreamWaitEvent(as_stream(stream()), static_cast<cudaEvent_t>(event.handle_), 0),
        "cannot wait for an event");
}

void Queue::wait() { cuda::wait(stream()); }

bool Queue::idle() const {
  const cudaError_t code = cudaStreamQuery(as_stream(stream()));
  const bool done = code != cudaErrorNotReady;
  check_work(done ? code : cudaSuccess);
  return done;
}

void clear(void* device, size_t bytes, Stream stream) {
  check(cudaMemsetAsync(device, 0, bytes, as_stream(stream)), "cannot clear GPU memory");
}

void copy_rows(void* to, size_t to_stride, const void* from, size_t from_stride, size_t bytes,
               int64_t rows, Stream stream) {
  check(cudaMemcpy2DAsync(to, to_stride, from, from_stride, bytes, static_cast<size_t>(rows),
                          cudaMemcpyDeviceToDevice, as_stream(stream)),
        "cannot copy rows on the GPU");
}

void wait(Stream stream) { check_work(cudaStreamSynchronize(as_stream(stream))); }

Event::Event(bool timing) {
  cudaEvent_t e = nullptr;
  check(cudaEventCreateWithFlags(&e, timing ? cudaEventDefault : cudaEventDisableTiming),
        "cannot create an event");
  handle_ = e;
}

Event::~Event() { (void)cudaEventDestroy(static_cast<cudaEvent_t>(handle_)); }

void Event::record(const Queue& queue) {
  check(cudaEventRecord(static_cast<cudaEvent_t>(handle_), as_stream(queue.stream())),
        "cannot record an event");
}

bool Event::done() const {
  const cudaError_t code = cudaEventQuery(static_cast<cudaEvent_t>(handle_));
  const bool done = code != cudaErrorNotReady;
  check_work(done ? code : cudaSuccess);
  return done;
}

void Event::wait() const { check_work(cudaEventSynchronize(static_cast<cudaEvent_t>(handle_))); }

float Event::ms_since(const Event& start) const {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(start.handle_),
                             static_cast<cudaEvent_t>(handle_)),
        "cannot read an event's time");
  return ms;
}

Graph::Graph(Queue& queue, const std::function<void()>& work) {
  const cudaStream_t stream = as_stream(queue.stream());
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cannot capture a graph");
  cudaGraph_t graph = nullptr;
  queue.recording_ = true;
  try {
    work();
    queue.recording_ = false;
  } catch (...) {
    queue.recording_ = false;
    (void)cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph), "cannot capture a graph");
  cudaGraphExec_t exec = nullptr;
  const cudaError_t code = cudaGraphInstantiate(&exec, graph, 0);
  (void)cudaGraphGetNodes(graph, nullptr, &nodes_);
  (void)cudaGraphDestroy(graph);
  check(code, "cannot instantiate a graph");
  handle_ = exec;
}

Graph::~Graph() { (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(handle_)); }

void Graph::launch(Queue& queue) const {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(handle_), as_stream(queue.stream())),
        "cannot launch a graph");
}

void launched(const char* operation, Stream stream) {
  last_operation = operation;
  check(cudaPeekAtLastError(), "cannot launch an operation");
  if (!waits_after_each()) return;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(as_stream(stream), &status), "cannot query a stream");
  if (status == cudaStreamCaptureStatusNone)
    check(cudaStreamSynchronize(as_stream(stream)), "an operation on the GPU failed");
}

}  // namespace tandem::cuda
