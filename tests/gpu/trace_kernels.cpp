// Writes down when each GPU kernel of a program began and ended, graphs' included, overlapping as
// in any run. The CUDA driver loads it into a program by itself:
//
//   CUDA_INJECTION64_PATH=libtrace_gpu_kernels.so TANDEM_KERNEL_TRACE=out.tsv pig-bench --device
//   cuda ...
//
// A line a kernel, in order of completion: begin and end in ns, name. scripts/bench/gpu_kernels.py
// reads it.
#include <cupti.h>

#include <cxxabi.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace {

using Kernel = CUpti_ActivityKernel10;

constexpr size_t kBufferBytes = size_t{8} << 20, kAlignment = 8;
std::FILE* out = nullptr;
std::mutex mutex;

void write(const Kernel& k) {
  int status = 0;
  char* name = abi::__cxa_demangle(k.name, nullptr, nullptr, &status);
  std::fprintf(out, "%llu\t%llu\t%s\n", static_cast<unsigned long long>(k.start),
               static_cast<unsigned long long>(k.end), name != nullptr ? name : k.name);
  std::free(name);
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* bytes, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kAlignment, kBufferBytes));
  *bytes = *buffer != nullptr ? kBufferBytes : 0;
  *max_records = 0;  // as many as fit
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  const std::scoped_lock lock(mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
      write(*reinterpret_cast<const Kernel*>(record));
  }
  std::free(buffer);
}

void finish() {
  (void)cuptiActivityFlushAll(1);
  const std::scoped_lock lock(mutex);
  if (std::fclose(out) != 0) std::perror("TANDEM_KERNEL_TRACE");
}

void check(CUptiResult result, const char* what) {
  if (result == CUPTI_SUCCESS) return;
  const char* text = "unknown error";
  (void)cuptiGetResultString(result, &text);
  std::fprintf(stderr, "trace_gpu_kernels: error: %s: %s\n", what, text);
  std::exit(6);
}

}  // namespace

/// What the driver calls while it starts; 1 = done.
extern "C" int InitializeInjection() {
  const char* path = std::getenv("TANDEM_KERNEL_TRACE");
  if (path == nullptr) return 1;
  out = std::fopen(path, "w");
  if (out == nullptr) {
    std::perror(path);
    std::exit(4);
  }
  check(cuptiActivityRegisterCallbacks(give_buffer, take_buffer), "register");
  check(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "enable");
  std::atexit(finish);
  return 1;
}
