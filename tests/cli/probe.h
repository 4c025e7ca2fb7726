#pragma once
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "cli/process.h"
#include "temporary_folder.h"

namespace tandem::testing {

using test::TemporaryFolder;

/// Runs the test tool with a model from the source tree's recipes.
inline Outcome probe(std::vector<std::string> arguments, Launch launch = {}) {
  launch.arguments = std::move(arguments);
  return run_process(TANDEM_CLI_PROBE, launch);
}

inline Outcome probe_model(std::vector<std::string> arguments, const Launch& launch = {}) {
  arguments.insert(arguments.begin(), {"-m", "tiny-2m"});
  return probe(std::move(arguments), launch);
}

inline std::string file_text(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace tandem::testing
