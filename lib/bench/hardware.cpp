#include "bench/hardware.h"

#include <emmintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>

#include "base/bound_threads.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/parallel.h"
#include "bench/choice_probe.h"
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

/// Memory that each of some threads reads a part of. Its lines are out of all caches when a pass
/// begins, so that the size of the last-level cache, hundreds of MiB on some machines, does not
/// matter.
class ReadMemory {
 public:
  explicit ReadMemory(int threads)
      : threads_(threads),
        blocks_(blocks_of(static_cast<size_t>(threads))),
        pages_(bytes() * static_cast<size_t>(threads)) {
    on_each_thread([&](char* part) { std::memset(part, 1, bytes()); });  // placed where it is read
  }

  /// Rate at which all threads read their parts, the best of several passes.
  /// read     reads the part of bytes() at `part`
  double gbps(int passes, const Interrupted& interrupted,
              const std::function<void(const char* part)>& read) const {
    double seconds = 1e300;
    for (int pass = 0; pass < passes; ++pass) {
      on_each_thread([&](const char* part) { flush_lines(part, bytes()); });
      seconds = std::min(seconds, best_seconds(1, interrupted, [&] { on_each_thread(read); }));
    }
    return static_cast<double>(bytes()) * threads_ / seconds * 1e-9;
  }

  int blocks() const { return blocks_; }  // of a part, each kReadProbeBlock bytes
  size_t bytes() const { return static_cast<size_t>(blocks_) * kReadProbeBlock; }

 private:
  static int blocks_of(size_t threads) {
    // Enough for a thread to read for a millisecond.
    constexpr size_t kLeast = size_t{64} << 20, kOfThread = size_t{32} << 20;
    const size_t wanted = std::max(kLeast, threads * kOfThread);
    const size_t share = std::min(wanted, available_host_bytes() / 4) / threads;
    return std::max(1, static_cast<int>(share / kReadProbeBlock));
  }
  void on_each_thread(const std::function<void(char* part)>& body) const {
    parallel_for(threads_, threads_,
                 [&](int t) { body(pages_.data() + static_cast<size_t>(t) * bytes()); });
  }

  int threads_, blocks_;
  Pages pages_;
};

/// Enough that one of them meets no other reader of a memory that guests of a host share: rates of
/// 5 and 10 passes were off by half there.
constexpr int kPasses = 40;

double measure_read(const ReadMemory& memory, const Interrupted& interrupted) {
  return memory.gbps(kPasses, interrupted, [&](const char* part) {
    uint64_t sum = 0;
    cpu_table().read_probe({.sum = &sum, .data = part}, {0, memory.blocks()});
  });
}

/// Sum of a row's words: a read of all its lines that the compiler must keep.
uint64_t sum_of_row(const char* row, size_t bytes) {
  __m128i sum = _mm_setzero_si128();
  for (size_t i = 0; i < bytes; i += sizeof(sum))
    sum = _mm_add_epi64(sum, _mm_load_si128(reinterpret_cast<const __m128i*>(row + i)));
  return static_cast<uint64_t>(_mm_cvtsi128_si64(sum)) ^
         static_cast<uint64_t>(_mm_cvtsi128_si64(_mm_unpackhi_epi64(sum, sum)));
}

/// As attention reads keys of a list: whole rows, each asked for some rows ahead of its use.
double measure_rows(const ReadMemory& memory, const Interrupted& interrupted) {
  constexpr size_t kRow = 256, kLine = 64, kAhead = 16;
  const size_t n = memory.bytes() / kRow;
  // Every row once, no two neighbours in turn: an odd multiplier permutes a power of two of rows,
  // and multiples beyond the part are left out.
  const size_t all = std::bit_ceil(n);
  const auto row_of = [&](size_t i) {
    size_t row = (i * 0x9e3779b1u) & (all - 1);
    row ^= row >> (static_cast<size_t>(std::bit_width(all)) / 2);
    return (row * 0x85ebca6bu) & (all - 1);
  };
  return memory.gbps(kPasses, interrupted, [&](const char* part) {
    uint64_t sum = 0;
    for (size_t i = 0; i < all; ++i) {
      if (const size_t next = row_of(i + kAhead); i + kAhead < all && next < n)
        for (size_t line = 0; line < kRow; line += kLine)
          __builtin_prefetch(part + next * kRow + line);
      if (const size_t row = row_of(i); row < n) sum += sum_of_row(part + row * kRow, kRow);
    }
    volatile uint64_t sink = sum;
    (void)sink;
  });
}

double measure_fma(int threads, const Interrupted& interrupted) {
  constexpr int kItems = 2000;  // 2 GFLOP a thread, tens of milliseconds
  const double seconds = best_seconds(3, interrupted, [&] {
    parallel_for(threads, threads, [&](int) {
      float sum = 0;
      cpu_table().fma_probe({.sum = &sum}, {0, kItems});
    });
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

/// Whether all that must be measured was.
bool are_limits(const Ceilings& c) {
  const auto is_rate = [](double x) { return x > 0 && std::isfinite(x); };
  // Products of matrices have no rate where the machine has no arithmetic of the type.
  return is_rate(c.mem_read_gbps) && is_rate(c.mem_rows_gbps) && is_rate(c.code_gscores) &&
         is_rate(c.f32_gflops) && std::isfinite(c.gemm_f32_gflops) &&
         std::isfinite(c.gemm_bf16_gflops);
}

}  // namespace

Ceilings measure_ceilings(int threads, const Interrupted& interrupted) {
  Ceilings c{.threads = threads, .isa = isa_in_use()};
  {
    const BoundThreads bound;
    {
      const ReadMemory memory(threads);
      c.mem_read_gbps = measure_read(memory, interrupted);
      c.mem_rows_gbps = measure_rows(memory, interrupted);
    }
    c.code_gscores = measure_code_gscores(threads, interrupted);
  }
  c.f32_gflops = measure_fma(threads, interrupted);
  c.gemm_f32_gflops = measure_gemm(DType::f32, interrupted);
  c.gemm_bf16_gflops = measure_gemm(DType::bf16, interrupted);
  return c;
}

std::optional<Ceilings> known_ceilings(int threads, const std::filesystem::path& file) {
  const io::Json cache = read_cache(file);
  const auto it = cache.find(cache_key(threads));
  if (it == cache.end() || !it->is_object()) return std::nullopt;
  const Ceilings c{.threads = threads,
                   .isa = isa_in_use(),
                   .mem_read_gbps = it->value("mem_read_gbps", 0.0),
                   .mem_rows_gbps = it->value("mem_rows_gbps", 0.0),
                   .code_gscores = it->value("code_gscores", 0.0),
                   .f32_gflops = it->value("f32_gflops", 0.0),
                   .gemm_f32_gflops = it->value("gemm_f32_gflops", 0.0),
                   .gemm_bf16_gflops = it->value("gemm_bf16_gflops", 0.0)};
  return are_limits(c) ? std::optional(c) : std::nullopt;
}

Ceilings cached_ceilings(int threads, const SeenRates& seen, const std::filesystem::path& file) {
  const auto known = known_ceilings(threads, file);
  if (known && known->mem_read_gbps >= seen.read_gbps &&
      std::max({known->f32_gflops, known->gemm_f32_gflops, known->gemm_bf16_gflops}) >= seen.gflops)
    return *known;
  const Ceilings c = measure_ceilings(threads);
  if (!are_limits(c)) return c;  // of a clock that jumped: measured again by the next run
  io::Json cache = read_cache(file);
  cache[cache_key(threads)] = {
      {"mem_read_gbps", c.mem_read_gbps},     {"mem_rows_gbps", c.mem_rows_gbps},
      {"code_gscores", c.code_gscores},       {"f32_gflops", c.f32_gflops},
      {"gemm_f32_gflops", c.gemm_f32_gflops}, {"gemm_bf16_gflops", c.gemm_bf16_gflops}};
  io::keep(file, cache.dump(2) + "\n");
  return c;
}

}  // namespace tandem::bench
