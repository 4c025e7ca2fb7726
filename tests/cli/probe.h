#pragma once
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/process.h"
#include "source_dir.h"
#include "temporary_folder.h"

namespace tandem::testing {

using test::program;
using test::TemporaryFolder;

/// Runs the test tool with a model from the source tree's recipes.
inline Outcome probe(std::vector<std::string> arguments, Launch launch = {}) {
  launch.arguments = std::move(arguments);
  return run_process(program("cli_probe"), launch);
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

/// JSON Lines, such as records and events.
inline std::vector<nlohmann::json> json_lines(const std::string& text) {
  std::vector<nlohmann::json> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) all.push_back(nlohmann::json::parse(line));
  return all;
}

}  // namespace tandem::testing
