#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "base/cpu_features.h"
#include "base/interrupt.h"
#include "base/types.h"
#include "io/cache_dir.h"

namespace tandem::machine {

/// What a record says about the machine.
struct HostInfo {
  std::string os, kernel, cpu_model;
  int sockets = 0, cores = 0, numa_nodes = 0;
  size_t mem_bytes = 0;
};
HostInfo read_host_info();

/// Rates that this machine reaches in simple loops with the given threads and ISA; what achieved
/// rates are divided by. Powers of ten: 1 GB = 10^9 bytes.
struct Ceilings {
  int threads = 0;
  Isa isa = Isa::scalar;
  double mem_read_gbps = 0;     // streaming read of memory far beyond the caches
  double mem_rows_gbps = 0;     // the same of rows of 256 bytes, here and there; 0 for GPUs
  double code_gscores = 0;      // scores by codes, 1e9 a second; 0 for GPUs
  double copy_in_gbps = 0;      // from pinned host memory to a GPU; 0 for CPUs
  double f32_gflops = 0;        // multiply-adds in registers
  double gemm_f32_gflops = 0;   // oneDNN, packed weights, 512 rows
  double gemm_bf16_gflops = 0;  // the same; 0 without AVX512-BF16
  double cached_gbps = 0;  // that runs with less than kUncachedBytes have read; 0: none beat memory
  double spread = 0;       // largest of all rates' pass_rate().spread
  double waited = 0;       // share of the time that the threads waited for cores which others held
  std::string doubt = {};  // why they are not kept; empty: they are limits

  /// oneDNN's rate for operands of a type; where it does not multiply bf16, arithmetic is in f32.
  double gemm_gflops(DType dtype) const {
    return dtype == DType::bf16 && gemm_bf16_gflops > 0 ? gemm_bf16_gflops : gemm_f32_gflops;
  }
};

/// The rate of the fastest of some passes: other processes can only add to a pass.
struct PassRate {
  double rate = 0;    // 1e9 a second
  double spread = 0;  // relative distance of the median pass from the fastest
};
/// work      of a pass
/// seconds   of each pass, at least one
PassRate pass_rate(double work, std::span<const double> seconds);

/// Bytes of a step that no last-level cache holds: fewer may be read faster than memory.
inline constexpr double kUncachedBytes = 512e6;

/// Rates of a run; 0: not known.
struct SeenRates {
  double read_gbps = 0;    // of steps that read more than kUncachedBytes
  double cached_gbps = 0;  // of others, which a cache may have served
  double gflops = 0;
  DType dtype = DType::f32;  // of the operands of gflops
};

/// Measures now, with the ISA in use: about a second, and some 150 MiB (8 MiB more a thread beyond
/// eight).
/// errors   kind interrupted
Ceilings measure_ceilings(int threads, const Interrupted& interrupted = {});

/// Scores by codes that the CPU computes while it chooses keys as the hybrid does, for four query
/// heads of 128 under each KV head: 1e9 keys a second, counted once a query head, of all threads
/// together. Signs of all keys, other bits of the candidates, selections and masses of the rest are
/// in it; codes come from a cache. A tenth of a second, and 40 MiB, 4 more a thread.
/// errors   kind interrupted
double measure_code_gscores(int threads, const Interrupted& interrupted = {});

inline constexpr const char* kCeilingsFile = "ceilings.json";

/// What shows that other work ran during a measurement; empty if nothing.
std::string busy_text(const Ceilings& c);

/// Whether a run has reached more than a limit.
bool is_beaten(const Ceilings& c, const SeenRates& seen);

/// A warning that names the reason and the command; empty where limits are not in doubt.
std::string doubt_text(const Ceilings& c);

using MeasureCeilings = std::function<Ceilings(int threads)>;

/// What cached_ceilings has kept of this boot; never measures. None where fewer threads are known
/// to reach more.
/// file    empty: nothing is known
std::optional<Ceilings> known_ceilings(
    int threads, const std::filesystem::path& file = io::cache_file(kCeilingsFile));

/// The limits in `file`, once per boot, thread count and ISA; measured where they are not known, or
/// where a run has reached more. None is below what earlier limits, fewer threads or the run
/// reached, but for reads that a cache may have served.
/// Limits of a busy machine are not kept, and say so in `doubt`: the threads waited for cores more
/// than 10 % of the time, repeats differ by more than 10 %, or fewer threads reach 10 % more. A
/// file that is damaged, cannot be written, or has another format only costs the measurement.
/// file   as io::keep takes it
Ceilings cached_ceilings(
    int threads, const SeenRates& seen = {},
    const std::filesystem::path& file = io::cache_file(kCeilingsFile),
    const MeasureCeilings& measure = [](int n) { return measure_ceilings(n); });

/// Measures, and replaces what `file` has. One that is not kept says why in `doubt`
/// and leaves the file.
Ceilings renewed_ceilings(int threads, const std::filesystem::path& file,
                          const MeasureCeilings& measure);

/// Raises known limits to what a run has reached; never measures.
void raise_ceilings(int threads, const SeenRates& seen,
                    const std::filesystem::path& file = io::cache_file(kCeilingsFile));

}  // namespace tandem::machine
