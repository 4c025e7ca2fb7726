#include "support/table.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/parallel.h"
#include "source_dir.h"

namespace tandem::support {
namespace {

using Json = nlohmann::ordered_json;

/// The numbers of the reasons, in the order of the table.
class Notes {
 public:
  /// `CPU: REASON` where the other device has another outcome.
  size_t number(const std::string& reason) {
    const auto found = std::ranges::find(reasons_, reason);
    const auto i = static_cast<size_t>(found - reasons_.begin());
    if (found == reasons_.end()) reasons_.push_back(reason);
    return i + 1;
  }
  const std::vector<std::string>& all() const { return reasons_; }

 private:
  std::vector<std::string> reasons_;
};

/// The text of a cell for people.
std::string shown(const Cell& cell, Notes& notes) {
  if (cell.cpu.empty() && cell.gpu.empty()) return "yes";
  if (cell.gpu.empty()) return fmt::format("GPU [{}]", notes.number(cell.cpu));
  if (cell.cpu.empty()) return fmt::format("CPU [{}]", notes.number(cell.gpu));
  const size_t cpu = notes.number(cell.cpu), gpu = notes.number(cell.gpu);
  return cpu == gpu ? fmt::format("no [{}]", cpu) : fmt::format("no [{}, {}]", cpu, gpu);
}

std::string told(const std::string& reason) {
  return reason.empty() ? "runs" : "is refused: " + reason;
}

std::string name_of(Place place) {
  return place == Place::cpu ? "CPU" : place == Place::plan ? "GPU (plan)" : "GPU";
}

}  // namespace

std::string text_of(const Cells& cells) {
  std::string text;
  Notes notes;
  for (const Method& method : methods()) {
    const std::string name(method.name);
    Json line = {{"method", name}}, refused = Json::object();
    for (const Family& family : kFamilies) {
      const std::string key(family.key);
      const Cell& cell = cells.at(name).at(key);
      line[key] = shown(cell, notes);
      if (!cell.cpu.empty()) refused[key]["cpu"] = cell.cpu;
      if (!cell.gpu.empty()) refused[key]["gpu"] = cell.gpu;
    }
    if (!refused.empty()) line["refused"] = refused;
    text += line.dump() + "\n";
  }
  for (size_t i = 0; i < notes.all().size(); ++i)
    text += Json{{"note", fmt::format("[{}]", i + 1)}, {"reason", notes.all()[i]}}.dump() + "\n";
  return text;
}

Cells cells_of(const std::string& text) {
  Cells cells;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const Json json = Json::parse(line);
    if (!json.contains("method")) continue;
    for (const Family& family : kFamilies) {
      const std::string key(family.key);
      if (!json.contains(key)) continue;
      Cell& cell = cells[json["method"].get<std::string>()][key];
      if (!json.contains("refused") || !json["refused"].contains(key)) continue;
      cell.cpu = json["refused"][key].value("cpu", "");
      cell.gpu = json["refused"][key].value("gpu", "");
    }
  }
  return cells;
}

std::filesystem::path cells_path() { return test::source_dir() / "tests/data/support.jsonl"; }

std::vector<Failure> run_cells(const std::vector<Place>& places, Cells& cells) {
  for (const Method& method : methods())
    for (const Family& family : kFamilies) cells[std::string(method.name)][std::string(family.key)];
  std::vector<Failure> failures;
  std::mutex mutex;
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < kFamilies.size(); i = next++) {
      Runner runner(kFamilies[i]);
      for (const Method& method : methods())
        for (const Place place : places) {
          runner.set_place(place);
          std::string refused, failed;
          try {
            method.check(runner);
          } catch (const Refused& e) {
            refused = e.message;
          } catch (const Fault& e) {
            failed = e.message;
          } catch (const std::exception& e) {
            failed = e.what();
          }
          const std::lock_guard lock(mutex);
          Cell& cell = cells[std::string(method.name)][std::string(kFamilies[i].key)];
          (place == Place::cpu ? cell.cpu : cell.gpu) = refused;
          if (!failed.empty())
            failures.push_back({std::string(method.name), std::string(kFamilies[i].title),
                                name_of(place), failed});
        }
    }
  };
  const auto n_threads = std::min(kFamilies.size(), static_cast<size_t>(usable_cores()));
  std::vector<std::thread> threads;
  for (size_t i = 1; i < n_threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  return failures;
}

void check_cells(const std::vector<Place>& places) {
  Cells committed;
  if (std::ifstream file(cells_path()); file) {
    std::stringstream text;
    text << file.rdbuf();
    committed = cells_of(text.str());
  }
  Cells cells = committed;
  const std::vector<Failure> failures = run_cells(places, cells);
  for (const Failure& f : failures) {
    CAPTURE(f.message);
    FAIL_CHECK("expected a result or a refusal of " << f.method << " with " << f.family << " on a "
                                                    << f.place);
  }
  if (std::getenv("TANDEM_UPDATE_CELLS") != nullptr) {
    if (!failures.empty()) return;
    std::ofstream(cells_path()) << text_of(cells);
    MESSAGE("wrote " << cells_path().string() << "; scripts/make-tables.py makes the page");
    return;
  }
  for (const Method& method : methods())
    for (const Family& family : kFamilies) {
      const std::string name(method.name), key(family.key);
      const Cell found = cells[name][key], &expected = committed[name][key];
      for (const Place place : places) {
        const auto of = [&](const Cell& cell) { return place == Place::cpu ? cell.cpu : cell.gpu; };
        CHECK_MESSAGE(of(found) == of(expected),
                      method.name << " with " << family.title << " on a " << name_of(place)
                                  << ": the table says it " << told(of(expected)) << "; it "
                                  << told(of(found)));
      }
    }
  std::ifstream file(cells_path());
  std::stringstream text;
  text << file.rdbuf();
  const bool same = text.str() == text_of(cells);
  CHECK_MESSAGE(same,
                "the file of cells is not in the test's form: set TANDEM_UPDATE_CELLS and run this "
                "test, then scripts/make-tables.py");
}

}  // namespace tandem::support
