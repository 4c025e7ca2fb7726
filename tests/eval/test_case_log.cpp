#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "eval/case_log.h"
#include "eval/report.h"

using namespace tandem::eval;
using tandem::Error;
using tandem::ErrorKind;
using tandem::io::Json;

namespace {

const std::vector<std::string> kNames = {"full", "near"};

Json recipe(const std::string& hash, int cases) {
  return {{"sha256", hash},
          {"effective",
           {{"eval", {{"cases", cases}, {"policies", {{{"name", "near"}}}}}},
            {"run", {{"threads", cases}}},
            {"output", {{"path", hash}}}}}};
}

struct TemporaryLog {
  std::filesystem::path path = std::filesystem::temp_directory_path() / "tandem-eval-log.jsonl";

  explicit TemporaryLog(const std::string& text) { std::ofstream(path) << text; }
  ~TemporaryLog() { std::filesystem::remove(path); }
  CaseLog read(const Json& r) const { return read_log(path, r, kNames); }
};

CaseRecord record(Task task, int index, bool full, bool near) {
  return {task,
          4096,
          index,
          {{0, Protocol::dense, Score::forced, full}, {1, Protocol::dense, Score::forced, near}}};
}

std::string failure(const std::string& text, const Json& r, ErrorKind kind) {
  try {
    TemporaryLog(text).read(r);
  } catch (const Error& e) {
    CHECK(e.kind() == kind);
    return e.what();
  }
  return "nothing";
}

}  // namespace

TEST_SUITE("eval/case_log") {
  TEST_CASE("what was written is read") {
    TextQuality full, near;
    full = {.n_tokens = 10, .nll = {3.0, 0.25}, .ppl = {20.0, {}}, .nll_difference = {}};
    near = full;
    near.nll_difference = {0.5, 0.125};
    near.kl_mean = 0.75;
    near.kl_p99 = 2.0;
    near.top1_agree = 0.875;
    const TemporaryLog file(
        header_line(recipe("a", 3)) + case_line(record(Task::vt, 0, true, false), kNames) +
        text_line({full, near}, kNames) + case_line(record(Task::kv, 2, true, true), kNames));
    const CaseLog log = file.read(recipe("a", 3));
    REQUIRE(log.cases.size() == 2);
    CHECK(log.cases[0].task == Task::vt);
    CHECK(log.cases[1].index == 2);
    CHECK(log.cases[0].length == 4096);
    REQUIRE(log.cases[0].outcomes.size() == 2);
    CHECK(log.cases[0].outcomes[0].correct);
    CHECK(log.cases[0].outcomes[1].policy == 1);
    CHECK(!log.cases[0].outcomes[1].correct);
    REQUIRE(log.text);
    CHECK((*log.text)[0].nll.stderr_ == 0.25);
    CHECK(!(*log.text)[0].ppl.stderr_);
    CHECK((*log.text)[1].nll_difference.mean == 0.5);
    CHECK((*log.text)[1].top1_agree == 0.875);
    CHECK(log.whole_bytes == std::filesystem::file_size(file.path));
  }

  TEST_CASE("a torn last line is left out") {
    const std::string whole =
        header_line(recipe("a", 3)) + case_line(record(Task::vt, 0, true, false), kNames);
    const TemporaryLog file(whole + "{\"task\":\"v");
    const CaseLog log = file.read(recipe("a", 3));
    CHECK(log.cases.size() == 1);
    CHECK(log.whole_bytes == whole.size());
  }

  TEST_CASE("another recipe is refused by the keys that differ") {
    const std::string message =
        failure(header_line(recipe("a", 3)), recipe("b", 4), ErrorKind::recipe);
    CHECK(message.find("these keys differ: eval.cases") != std::string::npos);
    CHECK(message.find("threads") == std::string::npos);
    CHECK(message.find("output") == std::string::npos);
  }

  TEST_CASE("malformed logs are refused") {
    const Json r = recipe("a", 3);
    const std::string header = header_line(r);
    for (const std::string text :
         {"", "{\"task\":", "{}\n", "[]\n", "{\"schema\":3}\n", "{\"schema\":\"tandem.eval/1\"}\n"})
      CHECK(failure(text, r, ErrorKind::input) != "nothing");
    for (const std::string line :
         {"{}", "{\"task\":\"xx\",\"length\":1,\"case\":0,\"correct\":{}}",
          "{\"task\":\"vt\",\"length\":0,\"case\":0,\"correct\":{}}",
          "{\"task\":\"vt\",\"length\":1,\"case\":0,\"correct\":{\"near\":{\"dense\":{\"forced\":1}"
          "}}}",
          "{\"task\":\"vt\",\"length\":1,\"case\":0,\"correct\":{\"far\":{\"dense\":{\"forced\":"
          "true}}}}",
          "{\"task\":\"vt\",\"length\":1,\"case\":0,\"correct\":{\"near\":7}}",
          "{\"task\":\"perplexity\",\"policies\":{\"full\":{}}}"})
      CHECK(failure(header + line + "\n", r, ErrorKind::input) != "nothing");
  }
}

TEST_SUITE("eval/report") {
  TEST_CASE("rows count cases and pair differences") {
    Settings s;
    s.tasks = {"vt", "kv"};
    s.protocols = {Protocol::dense};
    s.policies = {{"near", {}}};
    const std::vector<CaseRecord> records = {
        record(Task::vt, 0, true, false), record(Task::vt, 1, true, true),
        record(Task::vt, 2, false, true), record(Task::vt, 3, true, false),
        record(Task::kv, 0, true, true)};
    const auto rows = summarize(s, records);
    REQUIRE(rows.size() == 6);  // vt, kv and all, for two policies
    CHECK(rows[0].mean == 0.75);
    CHECK(!rows[0].difference);
    CHECK(rows[1].n_cases == 4);
    CHECK(rows[1].mean == 0.5);
    REQUIRE(rows[1].difference);
    CHECK(rows[1].difference->mean == -0.25);  // -1, 0, 1, -1
    CHECK(*rows[1].difference->stderr_ == doctest::Approx(std::sqrt(2.75 / 3 / 4)));
    CHECK(rows[4].task == "all");
    CHECK(rows[4].n_cases == 5);
    CHECK(rows[4].mean == 0.8);
    CHECK(!rows[3].difference->stderr_);
    const Json json = score_json(rows[1], kNames);
    CHECK(json["policy"] == "near");
    CHECK(json["difference"] == -0.25);
  }

  TEST_CASE("tasks without cases have no row") {
    Settings s;
    s.tasks = {"vt", "kv"};
    s.protocols = {Protocol::dense};
    const std::vector<CaseRecord> records = {record(Task::vt, 0, true, false)};
    for (const ScoreRow& row : summarize(s, records)) CHECK(row.task != "kv");
  }
}
