#pragma once
#include <doctest/doctest.h>

#include <algorithm>
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

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// An error of one line and a remedy of another at most, and nothing else.
inline void check_refused(const Outcome& run, int status, const std::string& says) {
  CAPTURE(says);
  CAPTURE(run.err);
  CHECK(run.status == status);
  CHECK(run.out == "");
  CHECK(has(run.err, says));
  CHECK(std::ranges::count(run.err, '\n') <= 2);
  CHECK_FALSE(has(run.err, "bug"));
}

}  // namespace tandem::testing
