#include <doctest/doctest.h>

#include <fmt/format.h>

#include <csignal>

#include "cli/probe.h"

using namespace tandem::testing;
namespace fs = std::filesystem;
using nlohmann::json;

// Sets of questions, written here: facts that tiny-16m finds in what it is asked.
namespace {

json question(const std::string& text, const std::string& answer) {
  return {{"instruction", text}, {"input", ""}, {"output", "unused"}, {"answer", answer}};
}

/// A fact among others, and a question about it.
json number_question(int i, bool right = true) {
  const int value = 1234567 + 1111 * i;
  std::string text = " It was late, and the lamps were lit along the harbour.";
  text += fmt::format(" The special magic value for amber-anchor is {}.", value);
  text += " The old boat lay by the pier, and the wind came from the north.";
  text += " \n\nQuestion: What is the special magic value for amber-anchor?\nAnswer:";
  text += " The special magic value for amber-anchor is";
  return question(text, fmt::format("{}", right ? value : value + 1));
}

struct Sets {
  TemporaryFolder folder;

  fs::path write(const std::string& set, const std::string& text) const {
    fs::create_directories(folder / set);
    return folder.write(set + "/test.json", text);
  }
  fs::path numbers(const std::string& set, int n, int n_right) const {
    json list = json::array();
    for (int i = 0; i < n; ++i) list.push_back(number_question(i, i < n_right));
    return write(set, list.dump(1));
  }
};

Outcome eval(const Sets& sets, const std::vector<std::string>& more, Launch launch = {}) {
  launch.arguments = {"-m",           "tiny-16m",
                      "--sets",       sets.folder.path().string(),
                      "--device",     "cpu",
                      "-s",           "model.compute=f32",
                      "-s",           "eval.sets.template=custom",
                      "-s",           "eval.sets.custom.prompt='{instruction}'",
                      "--no-progress"};
  launch.arguments.insert(launch.arguments.end(), more.begin(), more.end());
  return run_process(program("pig-eval"), launch);
}

}  // namespace

TEST_SUITE("cli/eval_sets") {
  TEST_CASE("a set is asked, judged and logged, and goes on where it stopped") {
    const Sets sets;
    sets.numbers("AddSub", 4, 3);
    const fs::path log = sets.folder / "answers.jsonl";
    const std::vector<std::string> asked = {
        "--task", "addsub",    "-s", "eval.policies=[{name: near, kind: streaming, recent: 16}]",
        "-o",     log.string()};
    const auto with = [&](std::vector<std::string> more) {
      more.insert(more.begin(), asked.begin(), asked.end());
      return eval(sets, more);
    };
    const Outcome whole = with({});
    CAPTURE(whole.err);
    REQUIRE(whole.status == 0);
    CHECK(whole.out.find("arithmetic, greedy answers up to 256 tokens, 4 cases per task\n") == 0);
    const std::string text = file_text(log);
    const auto lines = json_lines(text);
    REQUIRE(lines.size() == 1 + 4);
    int right = 0;
    std::vector<int> records;
    for (size_t i = 1; i < lines.size(); ++i) {
      CHECK(lines[i]["task"] == "addsub");
      records.push_back(lines[i]["record"]);
      const json& full = lines[i]["policies"]["full"];
      CAPTURE(full.dump());
      CHECK(full["tokens"] > 0);
      CHECK(has(full["text"], std::to_string(1234567 + 1111 * (records.back() - 1))));
      right += full["correct"] ? 1 : 0;
      CHECK(lines[i]["policies"]["near"].contains("text"));
    }
    CHECK(right == 3);
    CHECK(!std::ranges::is_sorted(records));  // drawn
    std::ranges::sort(records);
    CHECK(records == std::vector{1, 2, 3, 4});

    // A line and a torn one are done again.
    fs::resize_file(log, text.size() - lines[4].dump().size() - 10);
    const Outcome resumed = with({"--resume"});
    CHECK(resumed.status == 0);
    CHECK(has(resumed.err, "resuming after 2 cases"));
    CHECK(resumed.out == whole.out);
    CHECK(file_text(log) == text);
    CHECK(with({}).status == 2);  // there is a log

    // The same in other batches, and as records.
    fs::remove(log);
    const Outcome alone = with({"-s", "run.batch=1"});
    CHECK(alone.out == whole.out);
    const auto rows = json_lines(with({"--resume", "-s", "run.batch=1", "--format", "jsonl"}).out);
    REQUIRE(rows.size() == 2);
    CHECK(rows[0]["quality"]["task"] == "addsub");
    CHECK(rows[0]["quality"]["group"] == "arithmetic");
    CHECK(rows[0]["quality"]["correct"] == doctest::Approx(3.0 / 4));
    CHECK(rows[1]["quality"]["policy"] == "near");
    CHECK(rows[1]["quality"].contains("difference"));

    // A set that is not the one of the log.
    sets.numbers("AddSub", 4, 2);
    const Outcome other = with({"--resume", "-s", "run.batch=1"});
    CHECK(other.status == 4);
    CHECK(has(other.err, "AddSub/test.json: record 3: differs from the question that "));
  }

  TEST_CASE("a group has a score of its own; eval.cases draws from each set") {
    const Sets sets;
    for (const char* set : {"MultiArith", "gsm8k", "AddSub", "SingleEq", "SVAMP", "mawps"})
      sets.numbers(set, 3, 3);
    sets.write("AQuA", json::array({question("Which? (A) one (B) two", "B")}).dump());
    const Outcome run = eval(sets, {"--task", "arithmetic", "-s", "eval.cases=2", "-s",
                                    "run.batch=4", "--format", "jsonl"});
    CAPTURE(run.err);
    REQUIRE(run.status == 0);
    const auto rows = json_lines(run.out);
    REQUIRE(rows.size() == 8);
    double sum = 0;
    for (size_t i = 0; i < 7; ++i) {
      CHECK(rows[i]["quality"]["n_cases"] == (rows[i]["quality"]["task"] == "aqua" ? 1 : 2));
      sum += rows[i]["quality"]["correct"].get<double>();
    }
    CHECK(rows[7]["quality"]["task"] == "arithmetic");
    CHECK(rows[7]["quality"]["correct"] == doctest::Approx(sum / 7));
    CHECK(rows[7]["quality"]["n_cases"] == 13);
    const Outcome plan = eval(sets, {"--task", "arithmetic", "--dry-run"});
    CHECK(plan.status == 0);
    CHECK(has(plan.out, "memory "));
  }

  TEST_CASE("an interruption keeps the questions judged so far") {
    const Sets sets;
    sets.numbers("gsm8k", 60, 60);
    const fs::path log = sets.folder / "answers.jsonl";
    Launch launch;
    launch.signal = SIGINT;
    launch.signal_when = [&] {
      return fs::exists(log) && std::ranges::count(file_text(log), '\n') > 1;
    };
    const Outcome run = eval(
        sets, {"--task", "gsm8k", "-s", "eval.cases=60", "-s", "run.batch=1", "-o", log.string()},
        launch);
    CHECK(run.status == 130);
    CHECK(run.err.ends_with("pig-eval: error: interrupted\n"));
    CHECK(has(run.out, "gsm8k"));
    CHECK(file_text(log).back() == '\n');
    CHECK(json_lines(file_text(log)).size() < 61);
  }

  TEST_CASE("what is wrong with a set is said before anything runs") {
    const Sets sets;
    const auto refused = [&](const std::vector<std::string>& arguments, const std::string& says) {
      check_refused(eval(sets, arguments), 4, says);
    };
    refused({"--task", "hellaswag"},
            "hellaswag/test.json: the file does not exist, but task hellaswag needs it\n  hint: "
            "set eval.sets.path");
    sets.write("boolq", "[{\"instruction\": \"a\",\n  \"answer\": true,]");
    refused({"--task", "boolq"}, "boolq/test.json:2:");
    sets.write("boolq", json::array({question("a", "true"), {{"instruction", "b"}}}).dump());
    refused({"--task", "boolq"}, "boolq/test.json: record 2: ");
    sets.write("boolq", json::array({question("a", "maybe")}).dump());
    refused({"--task", "boolq"}, "record 1: the answer is 'maybe': expected one of true, false");
    sets.write("boolq", "[]");
    refused({"--task", "boolq"}, "expected questions, found none");
    sets.numbers("AddSub", 3, 3);
    refused({"--task", "addsub", "-s", "run.context=260"},
            ", but the context of tiny-16m is 260; 3 of 3 questions of addsub do not fit");
    // The template is the model's, which has none.
    sets.numbers("AddSub", 1, 1);
    check_refused(
        run_process(program("pig-eval"), {.arguments = {"-m", "tiny-16m", "--task", "addsub"}}), 3,
        "eval.sets.path: expected the folder");
  }
}
