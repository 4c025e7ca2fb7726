#pragma once
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "base/cpu_features.h"
#include "cli/terminal.h"
#include "tensor/gpu_isa.h"

namespace tandem::test {

constexpr int kSkipped = 77;  // ctest's SKIP_RETURN_CODE

/// Body of main() of a test program: runs its tests at the ISA that TANDEM_ISA names, which must be
/// set before oneDNN's first use, and with the kernels that TANDEM_GPU_ISA names, or says why they
/// are skipped if `why_skipped` gives a reason. Returns the exit status; a mistake in either has
/// the tools' text and status.
inline int run_tests(int argc, char** argv, std::string (*why_skipped)() = nullptr) {
  try {
    lower_isa_by_environment();
    cuda::force_gpu_isa_by_environment();
  } catch (const Error& e) {
    cli::Terminal(std::filesystem::path(argv[0]).filename()).error(e);
    return exit_status(e.kind());
  }
  if (const std::string reason = why_skipped != nullptr ? why_skipped() : ""; !reason.empty()) {
    std::fprintf(stderr, "skipped: %s\n", reason.c_str());
    return kSkipped;
  }
  return doctest::Context(argc, argv).run();
}

}  // namespace tandem::test
