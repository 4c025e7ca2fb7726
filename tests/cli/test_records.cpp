#include <doctest/doctest.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/kept_limits.h"
#include "cli/probe.h"

// What tools print of records: the forms of --format, --from, --resume.
using namespace tandem::testing;
using Json = nlohmann::json;

namespace {

const std::vector<std::string> kForms = {"text", "md", "csv", "json", "jsonl", "flat"};
// All others hold numbers.
const std::set<std::string> kTextColumns = {
    "tool", "point", "status", "error", "model", "device", "phase", "kernel", "shape", "method",
    "draft", "task", "policy", "kind", "reference", "group", "protocol", "score", "sparse",
    "spec_verify",
    // recipe keys that are texts
    "accept.path", "bench.adapters.kind", "bench.predict", "bench.prompts", "cache.attend",
    "cache.kind", "cache.place", "data.path", "model.path"};

std::string record_file(const std::string& name) {
  return (tandem::test::source_dir() / "records" / name).string();
}

Outcome print(const std::string& tool, const std::string& file, const std::string& form) {
  return run_process(program(tool), {.arguments = {"--from", file, "--format", form}});
}

/// Lines of RFC 4180 without line breaks in cells.
std::vector<std::vector<std::string>> csv_lines(const std::string& text) {
  std::vector<std::vector<std::string>> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    std::vector<std::string>& cells = lines.emplace_back(1);
    bool quoted = false;
    for (const char c : line) {
      if (c == '"')
        quoted = !quoted;
      else if (c == ',' && !quoted)
        cells.emplace_back();
      else
        cells.back() += c;
    }
  }
  return lines;
}

/// Column `name` of a row; fails where there is none.
std::string cell_of(const std::vector<std::vector<std::string>>& lines, size_t row,
                    const std::string& name) {
  const auto found = std::ranges::find(lines.at(0), name);
  REQUIRE(found != lines[0].end());
  return lines.at(row).at(static_cast<size_t>(found - lines[0].begin()));
}

void check_numbers(const std::vector<std::vector<std::string>>& lines) {
  for (size_t row = 1; row < lines.size(); ++row) {
    REQUIRE(lines[row].size() == lines[0].size());
    for (size_t i = 0; i < lines[0].size(); ++i) {
      const std::string& cell = lines[row][i];
      if (cell.empty() || kTextColumns.contains(lines[0][i])) continue;
      CAPTURE(lines[0][i]);
      CAPTURE(cell);
      double value = 0;
      const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
      CHECK(error == std::errc{});
      CHECK(end == cell.data() + cell.size());
    }
  }
}

}  // namespace

TEST_SUITE("cli/records") {
  TEST_CASE("each tool prints its records in every form") {
    const std::pair<std::string, std::string> files[] = {
        {"pig-bench", "sparse-speed-2-cores.jsonl"},
        {"pig-bench", "gpu-h100-adapters.jsonl"},
        {"magicdec-bench", "gpu-h200-magicdec-tiny.jsonl"},
        {"magicdec-bench", "gpu-h200-triforce.jsonl"},
        {"sequoia-bench", "gpu-h200-sequoia-7b.jsonl"},
        {"magicdec-acceptance", "triforce-acceptance-16k.jsonl"},
        {"kernel-bench", "kernels-sparse.jsonl"},
        {"pig-eval", "gpu-h200-sparse-quality.jsonl"},
        {"pig-eval", "attention-error-tiny-16m.jsonl"},
        {"pig-eval", "prose-kl-codes.jsonl"},
        {"pig-eval", "cpu-sirius-tasks.jsonl"}};
    std::map<bool, std::vector<std::string>> headers;  // of pig-eval, of the benchmarks
    for (const auto& [tool, name] : files) {
      CAPTURE(name);
      const std::vector<Json> records = json_lines(file_text(record_file(name)));
      for (const std::string& form : kForms) {
        CAPTURE(form);
        const Outcome run = print(tool, record_file(name), form);
        CHECK(run.status == 0);
        // These have full attention at the same contexts.
        if (name == "sparse-speed-2-cores.jsonl")
          CHECK(has(run.err,
                    "synthetic:llama-3.2-1b, batch 1: lsh is faster than full attention from the "
                    "shortest context measured, 2048\n"));
        else
          CHECK(run.err == "");
        if (form == "json") CHECK(Json::parse(run.out) == Json(records));
        if (form == "jsonl") CHECK(json_lines(run.out) == records);
        if (form == "text") CHECK(std::ranges::count(run.out, '\n') >= std::ssize(records) + 1);
        if (form == "md") CHECK(run.out.starts_with("| "));
        if (form == "csv") {
          const auto lines = csv_lines(run.out);
          CHECK(lines.size() == records.size() + 1);
          check_numbers(lines);
          // All files of a tool have these columns; swept keys come last.
          const auto is_swept = [](const std::string& title) { return has(title, "."); };
          const std::vector<std::string> fixed(lines[0].begin(),
                                               std::ranges::find_if(lines[0], is_swept));
          CHECK(std::all_of(lines[0].begin() + std::ssize(fixed), lines[0].end(), is_swept));
          const auto& [first, is_new] = headers.try_emplace(tool == "pig-eval", fixed);
          CHECK(fixed == first->second);
        }
        if (form != "flat") continue;
        const auto flat = json_lines(run.out);
        REQUIRE(flat.size() == records.size());
        for (size_t i = 0; i < flat.size(); ++i) {
          CHECK(flat[i].at("tool") == records[i].at("tool"));
          for (const auto& [key, value] : flat[i].items()) CHECK(value.is_primitive());
          if (!records[i].contains("quality")) continue;
          const Json quality = records[i]["quality"].flatten();
          for (const auto& [key, value] : quality.items()) {
            std::string field = key.substr(1);
            std::ranges::replace(field, '/', '_');
            CAPTURE(field);
            CHECK(flat[i].value(field, Json()) == value);
          }
        }
      }
    }
  }

  TEST_CASE("csv has one number a column") {
    const auto bench =
        csv_lines(print("pig-bench", record_file("sparse-speed-2-cores.jsonl"), "csv").out);
    const Json r = json_lines(file_text(record_file("sparse-speed-2-cores.jsonl"))).at(0);
    const auto number = [&](const char* name) { return std::stod(cell_of(bench, 1, name)); };
    const Json& step = r["timing"]["decode_step"];
    const double tok_s = r["throughput"]["decode_tok_s"];
    CHECK(number("tok_s") == doctest::Approx(tok_s));
    CHECK(number("tok_s_sd") ==
          doctest::Approx(tok_s * step["stddev"].get<double>() / step["mean"].get<double>()));
    CHECK(number("tok_s_p50") ==
          doctest::Approx(tok_s * step["mean"].get<double>() / step["p50"].get<double>()));
    CHECK(number("ms_p50") == doctest::Approx(step["p50"].get<double>()));
    CHECK(number("context") == r["workload"]["context_tokens"]);
    CHECK(cell_of(bench, 1, "device").empty());  // auto: the record does not say which it was
    CHECK(cell_of(bench, 1, "cache.kind") == r["recipe"]["effective"]["cache"]["kind"]);

    const auto rounds =
        csv_lines(print("magicdec-bench", record_file("gpu-h200-magicdec-tiny.jsonl"), "csv").out);
    const auto all = json_lines(file_text(record_file("gpu-h200-magicdec-tiny.jsonl")));
    for (size_t i = 0; i < all.size(); ++i) {
      if (!all[i].contains("spec") || !all[i]["spec"].contains("speedup_ci95_low")) continue;
      CHECK(std::stod(cell_of(rounds, i + 1, "ci_low")) ==
            doctest::Approx(all[i]["spec"]["speedup_ci95_low"].get<double>()));
      CHECK(std::stod(cell_of(rounds, i + 1, "speedup")) ==
            doctest::Approx(all[i]["spec"]["speedup_measured"].get<double>()));
    }
  }

  TEST_CASE("a sweep has a column a key, --resume prints all of it, and so does --from") {
    const TemporaryFolder folder;
    const std::string path = (folder / "out.jsonl").string();
    const auto bench = [&](std::vector<std::string> more) {
      std::vector<std::string> words = {"-m",      "tiny-2m",
                                        "--phase", "decode",
                                        "-s",      "run.context=32",
                                        "-s",      "bench.min_runs=3",
                                        "-s",      "bench.min_time=0s",
                                        "-s",      "bench.new_tokens=4",
                                        "-o",      path};
      words.insert(words.end(), more.begin(), more.end());
      return run_process(program("pig-bench"),
                         {.arguments = words, .variables = {{"TANDEM_CACHE_DIR", kept_limits()}}});
    };
    const Outcome one = bench({"--sweep", "run.batch=1", "--format", "csv"});
    REQUIRE(one.status == 0);
    const auto first = csv_lines(one.out);
    REQUIRE(first.size() == 2);
    check_numbers(first);
    CHECK(cell_of(first, 1, "run.batch") == "1");
    CHECK((cell_of(first, 1, "steady") == "0" || cell_of(first, 1, "steady") == "1"));
    CHECK(json_lines(file_text(path)).at(0)["recipe"]["swept"] == Json({"run.batch"}));

    const Outcome both = bench({"--sweep", "run.batch=1,2", "--format", "csv", "--resume"});
    const auto lines = csv_lines(both.out);
    REQUIRE(lines.size() == 3);
    CHECK(lines[1] == first[1]);  // as measured before
    CHECK(cell_of(lines, 2, "run.batch") == "2");
    const Outcome again = bench({"--sweep", "run.batch=1,2", "--format", "csv", "--resume"});
    CHECK(again.out == both.out);
    CHECK(bench({"--sweep", "run.batch=1,2", "--format", "jsonl", "--resume"}).out ==
          file_text(path));
    CHECK(print("pig-bench", path, "csv").out == both.out);
    const Outcome text = bench({"--sweep", "run.batch=1,2", "--resume"});
    CHECK(print("pig-bench", path, "text").out == text.out);
    CHECK(std::ranges::count(text.out, '\n') >= 3);
  }

  TEST_CASE("a log of cases makes the tables of its run") {
    const std::string log = record_file("eval-full-4096-builtin.jsonl");
    const Outcome run = print("pig-eval", log, "md");
    CAPTURE(run.err);
    CHECK(run.status == 0);
    CHECK(has(run.out, "4096 tokens, dense question, forced answers, 100 cases per task"));
    CHECK(has(run.out, "| full "));
    const auto lines = csv_lines(print("pig-eval", log, "csv").out);
    check_numbers(lines);
    CHECK(lines.size() == 7);  // five tasks, their mean, the head
    CHECK(lines[0][0] == "tool");
    CHECK(cell_of(lines, 1, "model") == "tiny-16m");
    const TemporaryFolder folder;
    const std::string text = file_text(log);
    const std::string torn = folder.write("torn.jsonl", text.substr(0, text.size() - 9)).string();
    const Outcome cut = print("pig-eval", torn, "text");
    CHECK(cut.status == 0);
    CHECK(has(cut.err, "torn.jsonl: the last line is incomplete and was skipped"));
  }

  TEST_CASE("tasks that full attention cannot do are called useless") {
    const auto eval = [](const std::string& task) {
      return run_process(
          program("pig-eval"),
          {.arguments = {"-m", "tiny-2m", "--task", task, "-s", "eval.cases=4", "-s",
                         "eval.lengths=[640]", "-s", "eval.protocols=[sparse]", "-s",
                         "eval.policies=[{name: near, kind: streaming}]", "--format", "csv"}});
    };
    const Outcome useless = eval("vt");
    CHECK(useless.status == 0);
    CHECK(has(useless.err, "full attention answers 0 of 4 questions, so these tasks cannot"));
    const Outcome useful = eval("kv");
    CHECK_FALSE(has(useful.err, "cannot compare"));
    const auto lines = csv_lines(useful.out);
    check_numbers(lines);
    CHECK(cell_of(lines, 1, "model") == "tiny-2m");
    CHECK(cell_of(lines, 1, "device") == "cpu");
    CHECK(cell_of(lines, 1, "point").size() == 12);
  }

  TEST_CASE("files that are not the tool's are named, a line cut off is left out") {
    const std::string decode = record_file("cpu-2-cores.jsonl");
    check_refused(print("kernel-bench", decode, "csv"), 4,
                  "cpu-2-cores.jsonl:1: expected records of kernel-bench, found one of pig-bench "
                  "(decode)\n  hint: print it with pig-bench --from " +
                      decode + "\n");
    check_refused(print("pig-bench", record_file("eval-full-4096-builtin.jsonl"), "csv"), 4,
                  "expected records of pig-bench, found one of pig-eval\n");
    check_refused(print("pig-bench", record_file("cpu-train-peer.jsonl"), "text"), 4,
                  ":1: expected records of pig-bench, found one of s2ft-train\n");
    check_refused(print("pig-bench", record_file("host-dtype-tiny-16m.jsonl"), "text"), 4,
                  "expected a record of pig-bench, found one without the key 'tool'\n");
    const TemporaryFolder folder;
    check_refused(print("pig-bench", folder.write("none", "").string(), "text"), 4,
                  "expected records, found none");
    const std::string wrote = "\n  hint: name a file that a run wrote with -o or --format jsonl";
    const std::string first = file_text(decode).substr(0, 300);
    check_refused(print("pig-bench", folder.write("cut.jsonl", first).string(), "text"), 4,
                  "cut.jsonl: expected full records, found only one that is cut off" + wrote);
    for (const char* tool : {"pig-bench", "pig-eval"}) {
      const Outcome other =
          print(tool, folder.write("config.json", "{\n  \"a\": 1\n}\n").string(), "text");
      check_refused(other, 4, wrote);
      const std::string config = folder.write("config.json", "{\n  \"a\": 1\n}").string();
      CHECK_FALSE(has(print(tool, config, "text").err, "--resume"));
    }
    check_refused(print("pig-bench", (folder / "absent").string(), "text"), 4, "absent");
    check_refused(run_process(program("pig-bench"), {.arguments = {"--from", decode, "-m", "x"}}),
                  2,
                  "--from: prints the records of a file and takes no recipe, setting, sweep, "
                  "--resume or --dry-run\n");
    check_refused(print("pig-bench", decode, "yaml"), 2,
                  "--format: expected one of text, md, csv, json, jsonl, flat, found 'yaml'\n");

    const std::string text = file_text(decode);
    const size_t whole = json_lines(text).size();
    const Outcome torn = print(
        "pig-bench", folder.write("torn.jsonl", text.substr(0, text.size() - 9)).string(), "jsonl");
    CHECK(torn.status == 0);
    CHECK(json_lines(torn.out).size() == whole - 1);
    CHECK(has(torn.err, "torn.jsonl: the last line is incomplete and was skipped"));
    // Only the line break is missing, as editors leave it.
    const Outcome bare = print(
        "pig-bench", folder.write("bare.jsonl", text.substr(0, text.size() - 1)).string(), "jsonl");
    CHECK(bare.err == "");
    CHECK(json_lines(bare.out).size() == whole);
  }

  TEST_CASE("plans of a sweep are an array with --format json") {
    const Outcome run = run_process(
        program("pig-bench"), {.arguments = {"-m", "tiny-2m", "--dry-run", "--phase", "decode",
                                             "--sweep", "run.batch=1,2", "--json"}});
    CHECK(run.status == 0);
    const Json plans = Json::parse(run.out);
    REQUIRE(plans.size() == 2);
    CHECK(plans[1]["batch"] == 2);
  }
}
