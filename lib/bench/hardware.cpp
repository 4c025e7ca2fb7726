#include "bench/hardware.h"

#include <emmintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>

#include "base/clock.h"
#include "base/error.h"
#include "base/parallel.h"
#include "bench/onednn_gemm.h"
#include "io/file.h"
#include "io/json.h"
#include "kernels/cpu_table.h"
#include "tensor/arena.h"

namespace tandem::bench {
namespace {

/// The least time of several passes: other processes can only add to it.
double best_seconds(int passes, const Interrupted& interrupted, const std::function<void()>& body) {
  double best = 1e300;
  for (int i = 0; i < passes; ++i) {
    poll(interrupted);
    const Stopwatch watch;
    body();
    best = std::min(best, watch.seconds());
  }
  return best;
}

/// Anonymous memory with huge pages where the system gives them, as weights and caches have it.
class Pages {
 public:
  explicit Pages(size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (data_ == MAP_FAILED)
      throw Error::make(ErrorKind::memory, "memory read probe", "cannot map {} bytes", bytes);
    madvise(data_, bytes, MADV_HUGEPAGE);
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  char* data() const { return static_cast<char*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

/// Takes a range out of all caches.
void flush_lines(const char* data, size_t bytes) {
  constexpr size_t kLine = 64;
  for (size_t i = 0; i < bytes; i += kLine) _mm_clflush(data + i);
  _mm_mfence();
}

double measure_read(int threads, const Interrupted& interrupted) {
  // Enough for a thread to read for a millisecond. Lines are flushed before each pass, so that the
  // size of the last-level cache, hundreds of MiB on some machines, does not matter.
  constexpr size_t kLeast = size_t{64} << 20, kOfThread = size_t{32} << 20;
  const auto n = static_cast<size_t>(threads);
  const size_t wanted = std::max(kLeast, n * kOfThread);
  const size_t share = std::min(wanted, available_host_bytes() / 4) / n;
  const int blocks = std::max(1, static_cast<int>(share / kReadProbeBlock));
  const size_t bytes = static_cast<size_t>(blocks) * kReadProbeBlock;
  const Pages pages(bytes * static_cast<size_t>(threads));
  const auto on_each_thread = [&](const auto& body) {
#pragma omp parallel for schedule(static, 1) num_threads(threads)
    for (int t = 0; t < threads; ++t) body(pages.data() + static_cast<size_t>(t) * bytes);
  };
  on_each_thread([&](char* part) { std::memset(part, 1, bytes); });  // placed where it is read
  double seconds = 1e300;
  for (int pass = 0; pass < 10; ++pass) {
    on_each_thread([&](const char* part) { flush_lines(part, bytes); });
    seconds = std::min(seconds, best_seconds(1, interrupted, [&] {
                         on_each_thread([&](const char* part) {
                           uint64_t sum = 0;
                           cpu_table().read_probe({.sum = &sum, .data = part}, {0, blocks});
                         });
                       }));
  }
  return static_cast<double>(bytes) * threads / seconds * 1e-9;
}

double measure_fma(int threads, const Interrupted& interrupted) {
  constexpr int kItems = 2000;  // 2 GFLOP a thread, tens of milliseconds
  const double seconds = best_seconds(3, interrupted, [&] {
#pragma omp parallel for schedule(static, 1) num_threads(threads)
    for (int t = 0; t < threads; ++t) {
      float sum = 0;
      cpu_table().fma_probe({.sum = &sum}, {0, kItems});
    }
  });
  return double{kFmaProbeFlops} * kItems * threads / seconds * 1e-9;
}

double measure_gemm(DType dtype, const Interrupted& interrupted) {
  if (OneDnnGemm::arithmetic(dtype) != dtype) return 0;
  const OneDnnGemm gemm(512, 4096, 4096, dtype);  // compute-bound, like a prefill chunk
  gemm.run();
  return gemm.flops() / best_seconds(5, interrupted, [&] { gemm.run(); }) * 1e-9;
}

std::string boot_id() {
  std::string id = "unknown";
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

/// {"boot_id": ..., "threads=2 isa=amx": {...}}; empty when absent, broken or of another boot.
io::Json read_cache(const std::filesystem::path& file) {
  try {
    io::Json cache = io::parse_json(io::read_file(file, 1 << 20), file.string());
    if (cache.is_object() && cache.value("boot_id", "") == boot_id()) return cache;
  } catch (const std::exception&) {
    // A cache that cannot be used is no cache.
  }
  return {{"boot_id", boot_id()}};
}

std::string cache_key(int threads) {
  return fmt::format("threads={} isa={}", threads, isa_name(isa_in_use()));
}

}  // namespace

Ceilings measure_ceilings(int threads, const Interrupted& interrupted) {
  Ceilings c{.threads = threads, .isa = isa_in_use()};
  c.mem_read_gbps = measure_read(threads, interrupted);
  c.f32_gflops = measure_fma(threads, interrupted);
  c.gemm_f32_gflops = measure_gemm(DType::f32, interrupted);
  c.gemm_bf16_gflops = measure_gemm(DType::bf16, interrupted);
  return c;
}

std::optional<Ceilings> known_ceilings(int threads, const std::filesystem::path& file) {
  const io::Json cache = read_cache(file);
  const auto it = cache.find(cache_key(threads));
  if (it == cache.end() || !it->is_object()) return std::nullopt;
  return Ceilings{.threads = threads,
                  .isa = isa_in_use(),
                  .mem_read_gbps = it->value("mem_read_gbps", 0.0),
                  .f32_gflops = it->value("f32_gflops", 0.0),
                  .gemm_f32_gflops = it->value("gemm_f32_gflops", 0.0),
                  .gemm_bf16_gflops = it->value("gemm_bf16_gflops", 0.0)};
}

Ceilings cached_ceilings(int threads, const SeenRates& seen, const std::filesystem::path& file) {
  const auto known = known_ceilings(threads, file);
  if (known && known->mem_read_gbps > 0 && known->mem_read_gbps >= seen.read_gbps &&
      std::max({known->f32_gflops, known->gemm_f32_gflops, known->gemm_bf16_gflops}) >= seen.gflops)
    return *known;
  const Ceilings c = measure_ceilings(threads);
  io::Json cache = read_cache(file);
  cache[cache_key(threads)] = {{"mem_read_gbps", c.mem_read_gbps},
                               {"f32_gflops", c.f32_gflops},
                               {"gemm_f32_gflops", c.gemm_f32_gflops},
                               {"gemm_bf16_gflops", c.gemm_bf16_gflops}};
  io::keep(file, cache.dump(2) + "\n");
  return c;
}

}  // namespace tandem::bench
