// test_fuzz TARGET: drives one fuzz target with seeded mutants of its seeds, without libFuzzer, so
// that targets stay alive in the normal tests. TANDEM_FUZZ_RUNS sets the number of inputs. When an
// input is a finding, it is written to the current folder.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>

#include "base/cpu_features.h"
#include "base/error.h"
#include "cli/terminal.h"
#include "mutator.h"
#include "seeds.h"
#include "target.h"

// TANDEM_FUZZ_TARGETS is X(safetensors) X(config_json) ..., written by the build.
#define X(name) extern "C" int fuzz_##name(const uint8_t* data, size_t size);
TANDEM_FUZZ_TARGETS
#undef X

namespace {

struct Target {
  const char* name;
  int (*run)(const uint8_t* data, size_t size);
};

constexpr Target kTargets[] = {
#define X(name) {#name, fuzz_##name},
    TANDEM_FUZZ_TARGETS
#undef X
};

bool survives(const Target& target, const std::string& input, const std::string& label) {
  try {
    target.run(reinterpret_cast<const uint8_t*>(input.data()), input.size());
    return true;
  } catch (const std::exception& e) {
    const std::string file = "finding-" + std::string(target.name);
    std::ofstream(file, std::ios::binary) << input;
    std::fprintf(stderr, "%s, %s: %s (input written to %s)\n", target.name, label.c_str(), e.what(),
                 file.c_str());
    return false;
  }
}

bool drive(const Target& target) {
  const std::vector<std::string> seeds = tandem::fuzz::seeds(target.name);
  const uint32_t n_runs = tandem::test::fuzz_runs(2000);
  for (const std::string& seed : seeds)
    if (!survives(target, seed, "seed input")) return false;
  if (tandem::fuzz::n_accepted != seeds.size()) {
    std::fprintf(stderr, "%s: only %zu of %zu seeds are valid inputs\n", target.name,
                 tandem::fuzz::n_accepted, seeds.size());
    return false;
  }
  const tandem::test::Mutator mutator(1);
  for (uint32_t run = 0; run < n_runs; ++run) {
    const std::string& seed = seeds[run % seeds.size()];
    if (!survives(target, mutator.mutate(seed, run), "run " + std::to_string(run))) return false;
  }
  std::printf("%s: %u inputs\n", target.name, n_runs);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    tandem::lower_isa_by_environment();
  } catch (const tandem::Error& e) {
    tandem::cli::Terminal("test_fuzz").error(e);
    return tandem::exit_status(e.kind());
  }
  for (const Target& target : kTargets)
    if (argc == 2 && std::strcmp(argv[1], target.name) == 0) return drive(target) ? 0 : 1;
  std::fprintf(stderr, "usage: test_fuzz TARGET; targets:\n");
  for (const Target& target : kTargets) std::fprintf(stderr, "  %s\n", target.name);
  return 2;
}
