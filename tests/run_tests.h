#pragma once
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/cpu_features.h"
#include "cli/terminal.h"
#include "cost_reporter.h"
#include "tensor/gpu_isa.h"

namespace tandem::test {

constexpr int kSkipped = 77;  // ctest's SKIP_RETURN_CODE

/// Lowers the ISA to that of the flag --lower-to=ISA, if there is one.
/// Returns why that cannot be, or nothing.
/// errors   kind usage for an unknown name
inline std::string lower_isa_by_flag(int argc, char** argv) {
  constexpr std::string_view kFlag = "--lower-to=";
  for (int i = 1; i < argc; ++i) {
    if (!std::string_view(argv[i]).starts_with(kFlag)) continue;
    const std::string name = argv[i] + kFlag.size();
    const Isa isa = isa_by_name(name, Isa::amx);
    if (isa == isa_in_use())
      return fmt::format("{} is this run's own level, at which every test runs anyway", name);
    if (isa > isa_in_use())
      return fmt::format("{} is above this run's own level, {}", name, isa_name(isa_in_use()));
    lower_isa(isa);
    setenv("TANDEM_ISA", name.c_str(), 1);  // for the tools that tests start
  }
  return {};
}

/// Body of main() of a test program: runs its tests at the ISA that TANDEM_ISA or --lower-to names,
/// which must be set before oneDNN's first use, and with the kernels that TANDEM_GPU_ISA names, or
/// says why they are skipped, for which `why_skipped` may give a reason too. Returns the exit
/// status; a mistake in a variable has the tools' text and status.
inline int run_tests(int argc, char** argv, std::string (*why_skipped)() = nullptr) {
  std::string reason;
  try {
    lower_isa_by_environment();
    cuda::force_gpu_isa_by_environment();
    reason = lower_isa_by_flag(argc, argv);
  } catch (const Error& e) {
    cli::Terminal(std::filesystem::path(argv[0]).filename()).error(e);
    return exit_status(e.kind());
  }
  if (reason.empty() && why_skipped != nullptr) reason = why_skipped();
  if (!reason.empty()) {
    std::fprintf(stderr, "skipped: %s\n", reason.c_str());
    return kSkipped;
  }
  return doctest::Context(argc, argv).run();
}

}  // namespace tandem::test
