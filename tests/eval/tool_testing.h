#pragma once
// Shared by the tests that run pig-eval.
#include <filesystem>
#include <string>
#include <vector>

#include "cli/process.h"
#include "eval/eval_testing.h"
#include "io/file.h"
#include "temporary_folder.h"

namespace eval_testing {

/// Runs pig-eval with tiny-2m. This machine's limits are measured once for all tests.
inline tandem::testing::Outcome run(const std::vector<std::string>& more,
                                    tandem::testing::Launch launch = {}) {
  std::vector<std::string> arguments = {"-m", model_path("tiny-2m"), "--no-progress"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  launch.arguments = arguments;
  launch.variables["TANDEM_CACHE_DIR"] = tandem::test::build_dir() / "test_cache";
  return tandem::testing::run_process(program("pig-eval"), launch);
}

inline std::vector<std::string> with(std::vector<std::string> a,
                                     const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct LogPath {
  tandem::test::TemporaryFolder folder;
  std::filesystem::path path = folder / "log.jsonl";
  std::string text() const { return tandem::io::read_file(path); }
};

}  // namespace eval_testing
