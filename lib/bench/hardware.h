#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "base/cpu_features.h"
#include "base/interrupt.h"
#include "base/types.h"
#include "io/cache_dir.h"

namespace tandem::bench {

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
  double code_gscores = 0;      // scores by codes, 1e9 a second (choice_probe.h); 0 for GPUs
  double copy_in_gbps = 0;      // from pinned host memory to a GPU; 0 for CPUs
  double f32_gflops = 0;        // multiply-adds in registers
  double gemm_f32_gflops = 0;   // oneDNN, packed weights, 512 rows
  double gemm_bf16_gflops = 0;  // the same; 0 without AVX512-BF16

  /// oneDNN's rate for operands of a type; where it does not multiply bf16, arithmetic is in f32.
  double gemm_gflops(DType dtype) const {
    return dtype == DType::bf16 && gemm_bf16_gflops > 0 ? gemm_bf16_gflops : gemm_f32_gflops;
  }
};

/// Rates of a run; 0: not known, or not from memory.
struct SeenRates {
  double read_gbps = 0;
  double gflops = 0;
};

/// Measures now, with the ISA in use: about a second, and some 150 MiB (8 MiB more a thread beyond
/// eight).
/// errors   kind interrupted
Ceilings measure_ceilings(int threads, const Interrupted& interrupted = {});

inline constexpr const char* kCeilingsFile = "ceilings.json";

/// What cached_ceilings has kept; never measures.
/// file    empty: nothing is known
std::optional<Ceilings> known_ceilings(
    int threads, const std::filesystem::path& file = io::cache_file(kCeilingsFile));

/// The same, once per boot, thread count and ISA: kept in `file`. One that cannot be read or
/// written only costs the measurement.
/// seen   what a run has reached: kept values below it were taken on a busy machine and are
///        measured again
/// file   as io::keep takes it
Ceilings cached_ceilings(int threads, const SeenRates& seen = {},
                         const std::filesystem::path& file = io::cache_file(kCeilingsFile));

}  // namespace tandem::bench
