#pragma once
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "source_dir.h"

namespace tandem::testing {

/// Writes limits of this boot for all ISAs and 1 to 8 threads, so high that runs do not measure.
/// read_gbps   of memory; steps from a cache may read faster
/// gflops      of products and multiply-adds
inline void write_limits(const std::filesystem::path& file, double read_gbps = 1e6,
                         double gflops = 1e6) {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::ofstream out(file);
  out << R"({"format": 2, "boot_id": ")" << (boot.empty() ? "unknown" : boot) << '"';
  for (const char* isa : {"scalar", "avx2", "avx512", "avx512_bf16", "amx"})
    for (int threads = 1; threads <= 8; ++threads)
      out << ",\n\"threads=" << threads << " isa=" << isa << R"(": {"mem_read_gbps": )" << read_gbps
          << R"(, "cached_gbps": 1e6, "mem_rows_gbps": 1e6, "code_gscores": 1e6, "f32_gflops": )"
          << gflops << R"(, "gemm_f32_gflops": )" << gflops << R"(, "gemm_bf16_gflops": )" << gflops
          << '}';
  out << "}\n";
}

/// A cache folder of all tests, with such limits.
inline std::string kept_limits() {
  static const std::filesystem::path folder = [] {
    const auto path = test::build_dir() / "test_cache";
    std::filesystem::create_directories(path);
    const auto part = path / ("ceilings." + std::to_string(getpid()));  // several tests may run
    write_limits(part);
    std::filesystem::rename(part, path / "ceilings.json");
    return path;
  }();
  return folder;
}

}  // namespace tandem::testing
