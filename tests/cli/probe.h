#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/process.h"
#include "source_dir.h"
#include "temporary_folder.h"

namespace tandem::testing {

using Json = nlohmann::json;
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

inline Json last_event(const Outcome& run) { return json_lines(run.out).back(); }

/// Token ids of each sequence.
inline std::map<int, std::vector<int>> ids_of(const Outcome& run) {
  std::map<int, std::vector<int>> ids;
  for (const Json& e : json_lines(run.out))
    if (e["event"] == "token") ids[e["seq"]].push_back(e["id"]);
  return ids;
}

/// Records of a benchmark or of acceptance by their phase; of one point.
inline std::map<std::string, Json> by_phase(const std::string& text) {
  std::map<std::string, Json> records;
  for (const Json& record : json_lines(text)) records[record["workload"]["phase"]] = record;
  return records;
}

inline std::string recipe_file(const std::string& name) {
  return (test::source_dir() / "recipes" / name).string();
}

/// The demo document.
inline std::string logbook() { return file_text(recipe_file("demo/lighthouse-logbook.txt")); }

/// The text of a recipe without its comments.
inline std::string without_origins(const std::string& text) {
  std::string out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    line.resize(std::min(line.size(), line.find("  # ")));
    out += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  return out;
}

/// A copy of tiny-2m, with keys of one of its JSON files changed.
inline std::string changed_model(const TemporaryFolder& folder, const std::string& file,
                                 const Json& changes) {
  const std::filesystem::path copy = folder / "model";
  std::filesystem::copy(recipe_file("models/tiny-2m"), copy);
  Json j = Json::parse(file_text(copy / file));
  j.update(changes);
  std::ofstream(copy / file) << j;
  return copy;
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

struct Refusal {
  Words flags;
  int status;
  std::string says;
};

/// Runs `line` with each row's flags after it.
inline void check_refusals(const Words& line, const std::vector<Refusal>& rows) {
  for (const Refusal& row : rows) check_refused(command(line + row.flags), row.status, row.says);
}

}  // namespace tandem::testing
