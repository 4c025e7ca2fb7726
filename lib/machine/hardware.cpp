#include "machine/hardware.h"

#include <emmintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <span>
#include <vector>

#include "base/bound_threads.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/parallel.h"
#include "base/percentile.h"
#include "io/file.h"
#include "io/json.h"
#include "kernels/cpu_table.h"
#include "machine/onednn_gemm.h"
#include "tensor/arena.h"

namespace tandem::machine {
namespace {

/// Seconds of each of several passes.
std::vector<double> time_passes(int passes, const Interrupted& interrupted,
                                const std::function<void()>& body) {
  std::vector<double> seconds;
  for (int i = 0; i < passes; ++i) {
    poll(interrupted);
    const Stopwatch watch;
    body();
    seconds.push_back(watch.seconds());
  }
  return seconds;
}

/// Seconds that threads of this process have waited for a core so far; 0 where the system does not
/// say.
double waited_seconds() {
  double ns = 0;
  std::error_code ignored;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
    double ran = 0, waited = 0;
    if (std::ifstream(task.path() / "schedstat") >> ran >> waited) ns += waited;
  }
  return 1e-9 * ns;
}

/// Anonymous memory with huge pages where the system gives them, as weights and caches have it.
class Pages {
 public:
  explicit Pages(size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (data_ == MAP_FAILED)
      throw make_error(ErrorKind::memory, "memory read probe", "cannot map {} bytes", bytes);
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

  /// Rate at which all threads read their parts.
  /// read     reads the part of bytes() at `part`
  PassRate gbps(int passes, const Interrupted& interrupted,
                const std::function<void(const char* part)>& read) const {
    std::vector<double> seconds;
    for (int pass = 0; pass < passes; ++pass) {
      on_each_thread([&](const char* part) { flush_lines(part, bytes()); });
      seconds.push_back(time_passes(1, interrupted, [&] { on_each_thread(read); }).front());
    }
    return pass_rate(static_cast<double>(bytes()) * threads_, seconds);
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
constexpr int kReadPasses = 40;

PassRate measure_read(const ReadMemory& memory, const Interrupted& interrupted) {
  return memory.gbps(kReadPasses, interrupted, [&](const char* part) {
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
PassRate measure_rows(const ReadMemory& memory, const Interrupted& interrupted) {
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
  return memory.gbps(kReadPasses, interrupted, [&](const char* part) {
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

PassRate measure_fma(int threads, const Interrupted& interrupted) {
  constexpr int kItems = 2000;  // 2 GFLOP a thread, tens of milliseconds
  const std::vector<double> seconds = time_passes(3, interrupted, [&] {
    parallel_for(threads, threads, [&](int) {
      float sum = 0;
      cpu_table().fma_probe({.sum = &sum}, {0, kItems});
    });
  });
  return pass_rate(double{kFmaProbeFlops} * kItems * threads, seconds);
}

PassRate measure_gemm(DType dtype, const Interrupted& interrupted) {
  if (OneDnnGemm::arithmetic(dtype) != dtype) return {};
  const OneDnnGemm gemm(512, 4096, 4096, dtype);  // compute-bound, like a prefill chunk
  gemm.run();
  return pass_rate(gemm.flops(), time_passes(5, interrupted, [&] { gemm.run(); }));
}

std::string boot_id() {
  std::string id = "unknown";
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

/// Of the file; others may hold limits that nothing had checked.
constexpr int kFormat = 2;

/// {"format": 2, "boot_id": ..., "threads=2 isa=amx": {...}}; without limits when absent, damaged,
/// of another format or another boot.
io::Json read_cache(const std::filesystem::path& file) {
  try {
    io::Json cache = io::parse_json(io::read_file(file, 1 << 20), file.string());
    if (cache.is_object() && cache.value("format", 0) == kFormat &&
        cache.value("boot_id", "") == boot_id())
      return cache;
  } catch (const std::exception&) {
    // A cache that cannot be used is no cache.
  }
  return {{"format", kFormat}, {"boot_id", boot_id()}};
}

std::string cache_key(int threads) {
  return fmt::format("threads={} isa={}", threads, isa_name(isa_in_use()));
}

struct NamedRate {
  const char* key;
  double Ceilings::*rate;
  const char* what;
};
constexpr NamedRate kRates[] = {
    {"mem_read_gbps", &Ceilings::mem_read_gbps, "GB/s of memory reads"},
    {"mem_rows_gbps", &Ceilings::mem_rows_gbps, "GB/s of scattered rows"},
    {"code_gscores", &Ceilings::code_gscores, "G scores/s from key codes"},
    {"f32_gflops", &Ceilings::f32_gflops, "GFLOP/s of f32 multiply-adds"},
    {"gemm_f32_gflops", &Ceilings::gemm_f32_gflops, "GFLOP/s of oneDNN's f32 products"},
    {"gemm_bf16_gflops", &Ceilings::gemm_bf16_gflops, "GFLOP/s of oneDNN's bf16 products"}};

/// Whether all that must be measured was.
bool are_limits(const Ceilings& c) {
  const auto is_rate = [](double x) { return x > 0 && std::isfinite(x); };
  // Products of matrices have no rate where the machine has no arithmetic of the type.
  return is_rate(c.mem_read_gbps) && is_rate(c.mem_rows_gbps) && is_rate(c.code_gscores) &&
         is_rate(c.f32_gflops) && std::isfinite(c.gemm_f32_gflops) &&
         std::isfinite(c.gemm_bf16_gflops);
}

std::optional<Ceilings> read_entry(const io::Json& cache, int threads) {
  const auto it = cache.find(cache_key(threads));
  if (it == cache.end() || !it->is_object()) return std::nullopt;
  Ceilings c{.threads = threads, .isa = isa_in_use()};
  for (const NamedRate& r : kRates) {
    const auto rate = it->find(r.key);
    if (rate != it->end() && rate->is_number()) c.*r.rate = rate->get<double>();
  }
  if (const auto rate = it->find("cached_gbps"); rate != it->end() && rate->is_number())
    c.cached_gbps = rate->get<double>();
  return are_limits(c) ? std::optional(c) : std::nullopt;
}

bool keep_entry(const Ceilings& c, const std::filesystem::path& file) {
  io::Json cache = read_cache(file);
  io::Json& entry = cache[cache_key(c.threads)] = io::Json::object();
  for (const NamedRate& r : kRates) entry[r.key] = c.*r.rate;
  if (c.cached_gbps > 0) entry["cached_gbps"] = c.cached_gbps;
  return io::keep(file, cache.dump(2) + "\n");
}

/// Two measurements of a quiet machine differ by less.
constexpr double kMostSpread = 0.1;

/// Says which rate fewer threads are known to exceed; empty if none.
std::string below_fewer(const Ceilings& c, const io::Json& cache) {
  for (int n = 1; n < c.threads; ++n)
    if (const auto fewer = read_entry(cache, n))
      for (const NamedRate& r : kRates)
        if (c.*r.rate < (1 - kMostSpread) * (*fewer).*r.rate)
          return fmt::format("{} threads reach fewer {} than {}", c.threads, r.what, n);
  return {};
}

std::string doubt(const Ceilings& c, const io::Json& cache) {
  if (!are_limits(c)) return "the clock jumped";
  const std::string busy = busy_text(c);
  return busy.empty() ? below_fewer(c, cache) : busy;
}

void raise(Ceilings& c, const Ceilings& reached) {
  for (const NamedRate& r : kRates) c.*r.rate = std::max(c.*r.rate, reached.*r.rate);
}

void raise(Ceilings& c, const SeenRates& seen) {
  constexpr double kJitter = 1.2;  // of runs from a cache, which need no measurement each
  if (seen.cached_gbps > c.mem_read_gbps) c.cached_gbps = kJitter * seen.cached_gbps;
  c.mem_read_gbps = std::max(c.mem_read_gbps, seen.read_gbps);
  double& gemm =
      seen.dtype == DType::bf16 && c.gemm_bf16_gflops > 0 ? c.gemm_bf16_gflops : c.gemm_f32_gflops;
  if (seen.gflops > c.f32_gflops) gemm = std::max(gemm, seen.gflops);
}

}  // namespace

std::string busy_text(const Ceilings& c) {
  if (c.waited > kMostSpread) return "threads waited for cores in use by other processes";
  return c.spread > kMostSpread ? "repeats differ by more than 10 %" : "";
}

bool is_beaten(const Ceilings& c, const SeenRates& seen) {
  return seen.read_gbps > c.mem_read_gbps ||
         seen.cached_gbps > std::max(c.mem_read_gbps, c.cached_gbps) ||
         seen.gflops > std::max(c.gemm_gflops(seen.dtype), c.f32_gflops);
}

std::string doubt_text(const Ceilings& c) {
  if (c.doubt.empty()) return {};
  return fmt::format(
      "the limits of this machine are not saved: {}. kernel-bench --limits measures them again",
      c.doubt);
}

PassRate pass_rate(double work, std::span<const double> seconds) {
  std::vector<double> sorted(seconds.begin(), seconds.end());
  std::sort(sorted.begin(), sorted.end());
  return {.rate = work / sorted.front() * 1e-9,
          .spread = percentile(sorted, 0.5) / sorted.front() - 1};
}

Ceilings measure_ceilings(int threads, const Interrupted& interrupted) {
  Ceilings c{.threads = threads, .isa = isa_in_use()};
  const Stopwatch watch;
  const double waited_before = waited_seconds();
  const auto rate = [&](const PassRate& r) {
    c.spread = std::max(c.spread, r.spread);
    return r.rate;
  };
  {
    const BoundThreads bound;
    {
      const ReadMemory memory(threads);
      c.mem_read_gbps = rate(measure_read(memory, interrupted));
      c.mem_rows_gbps = rate(measure_rows(memory, interrupted));
    }
    c.code_gscores = measure_code_gscores(threads, interrupted);
  }
  c.f32_gflops = rate(measure_fma(threads, interrupted));
  c.gemm_f32_gflops = rate(measure_gemm(DType::f32, interrupted));
  c.gemm_bf16_gflops = rate(measure_gemm(DType::bf16, interrupted));
  c.waited = (waited_seconds() - waited_before) / (watch.seconds() * threads);
  return c;
}

std::optional<Ceilings> known_ceilings(int threads, const std::filesystem::path& file) {
  const io::Json cache = read_cache(file);
  const auto known = read_entry(cache, threads);
  return known && below_fewer(*known, cache).empty() ? known : std::nullopt;
}

Ceilings cached_ceilings(int threads, const SeenRates& seen, const std::filesystem::path& file,
                         const MeasureCeilings& measure) {
  const auto known = known_ceilings(threads, file);
  if (known && !is_beaten(*known, seen)) return *known;
  Ceilings c = measure(threads);
  const io::Json cache = read_cache(file);
  c.doubt = doubt(c, cache);
  if (!are_limits(c)) c = known.value_or(c);
  if (!are_limits(c)) return c;
  if (known) {
    raise(c, *known);
    c.doubt.clear();  // no lower than the kept ones, and reached on this machine
  }
  for (int n = 1; n < threads; ++n)
    if (const auto fewer = read_entry(cache, n)) raise(c, *fewer);
  raise(c, seen);
  if (c.doubt.empty()) keep_entry(c, file);
  return c;
}

Ceilings renewed_ceilings(int threads, const std::filesystem::path& file,
                          const MeasureCeilings& measure) {
  Ceilings c = measure(threads);
  c.doubt = doubt(c, read_cache(file));
  if (c.doubt.empty() && !keep_entry(c, file)) c.doubt = "the file cannot be written";
  return c;
}

void raise_ceilings(int threads, const SeenRates& seen, const std::filesystem::path& file) {
  const SeenRates proof{.read_gbps = seen.read_gbps, .gflops = seen.gflops, .dtype = seen.dtype};
  auto known = known_ceilings(threads, file);
  if (!known || !is_beaten(*known, proof)) return;
  raise(*known, proof);
  keep_entry(*known, file);
}

}  // namespace tandem::machine
