#include <doctest/doctest.h>

#include <fmt/format.h>

#include <csignal>

#include "cli/probe.h"

using namespace tandem::testing;
namespace fs = std::filesystem;
using nlohmann::json;

// Questions of files, written here: facts that tiny-16m finds in what it is asked.
namespace {

int value(int i) { return 1234567 + 1111 * i; }

/// A fact among others, the question about it, and a right answer or a wrong one.
json fact(int i, bool right = true) {
  return {{"prompt", fmt::format("It was late, and the lamps were lit. The special magic value for "
                                 "amber-anchor is {}. The old boat lay by the pier.",
                                 value(i))},
          {"question",
           "\n\nQuestion: What is the special magic value for amber-anchor?\nAnswer: The special "
           "magic value for amber-anchor is"},
          {"answer", right ? value(i) : value(i) + 1}};
}

json choice(int i, int right) {
  json line = fact(i);
  line["id"] = fmt::format("q{}", i);
  line["choices"] = {fmt::format("{}", value(i)), "a boat", "the pier"};
  line["answer"] = right;
  return line;
}

struct Files {
  TemporaryFolder folder;

  std::string write(const std::string& name, const std::vector<json>& lines) const {
    std::string text;
    for (const json& line : lines) text += line.dump() + "\n";
    return folder.write(name, text).string();
  }
  /// `n` questions, of which `n_right` have the right answer.
  std::string facts(int n, int n_right) const {
    std::vector<json> lines;
    for (int i = 0; i < n; ++i) lines.push_back(fact(i, i < n_right));
    return write("facts.jsonl", lines);
  }
};

Outcome eval(const std::vector<std::string>& more, Launch launch = {}) {
  launch.arguments = {"-m", "tiny-16m",          "--device",     "cpu",
                      "-s", "model.compute=f32", "--no-progress"};
  launch.arguments.insert(launch.arguments.end(), more.begin(), more.end());
  return run_process(program("pig-eval"), launch);
}

const std::string kNear = "eval.policies=[{name: near, kind: streaming, recent: 16}]";

}  // namespace

TEST_SUITE("cli/eval_own") {
  TEST_CASE("files are asked, judged and logged, and go on where they stopped") {
    const Files files;
    const std::string facts = files.facts(6, 4);
    const std::string which =
        files.write("which.jsonl", {choice(0, 0), choice(1, 0), choice(2, 1)});
    const fs::path log = files.folder / "log.jsonl";
    const auto with = [&](const std::vector<std::string>& more) {
      std::vector<std::string> all = {"--task", facts, "--task", which,
                                      "-s",     kNear, "-o",     log.string()};
      all.insert(all.end(), more.begin(), more.end());
      return eval(all);
    };
    const Outcome whole = with({});
    CAPTURE(whole.err);
    REQUIRE(whole.status == 0);
    CHECK(whole.out.starts_with(
        "own questions, dense question, generated answers, 6 cases per task\n"));
    CHECK(has(whole.out,
              "own questions, sparse question, acc, choices by log-probability, 3 cases per "
              "task\n"));
    CHECK(has(whole.out, "acc_norm, choices by log-probability per byte, 3 cases per task"));
    const std::string text = file_text(log);
    const auto lines = json_lines(text);
    REQUIRE(lines.size() == 1 + 6 + 3);
    for (size_t i = 1; i < lines.size(); ++i) {
      const json& line = lines[i];
      const int record = line["record"];
      CAPTURE(line.dump());
      const json& full = line["correct"]["full"];
      for (const char* protocol : {"dense", "sparse"})
        if (line["task"] == "facts") {
          CHECK(full[protocol]["generated"] == (record <= 4));
          CHECK(line["texts"]["full"][protocol].get<std::string>().starts_with(
              fmt::format(" {}.", value(record - 1))));
        } else {
          CHECK(line["id"] == fmt::format("q{}", record - 1));
          CHECK(full[protocol]["acc"] == (record <= 2));
          const std::vector<double> logprobs = line["logprobs"]["full"][protocol];
          REQUIRE(logprobs.size() == 3);
          CHECK(logprobs[0] > logprobs[1] + 10);
          CHECK(logprobs[0] < 0);
        }
    }

    // Three lines and a torn one are done again.
    size_t cut = text.size() - 10;
    for (size_t i = 7; i < 10; ++i) cut -= lines[i].dump().size();
    fs::resize_file(log, cut);
    const Outcome resumed = with({"--resume"});
    CHECK(resumed.status == 0);
    CHECK(has(resumed.err, "resuming after 5 cases"));
    CHECK(resumed.out == whole.out);
    CHECK(file_text(log) == text);

    // Every form, from the log alone.
    const auto from = [&](const std::string& format) {
      return run_process(program("pig-eval"),
                         {.arguments = {"--from", log.string(), "--format", format}});
    };
    CHECK(from("text").out == whole.out);
    CHECK(has(from("md").out, "| full "));
    CHECK(json::parse(from("json").out).size() == 12);
    CHECK(has(from("csv").out, ",acc_norm,"));
    const auto flat = json_lines(from("flat").out);
    REQUIRE(flat.size() == 12);
    const auto rows = json_lines(from("jsonl").out);
    CHECK(rows[0]["quality"]["group"] == "own");
    CHECK(rows[0]["quality"]["task"] == "facts");
    CHECK(rows[0]["quality"]["correct"] == doctest::Approx(4.0 / 6));
    CHECK_FALSE(rows[0]["quality"].contains("length"));
    CHECK(rows[1]["quality"]["policy"] == "near");
    CHECK(rows[1]["quality"]["difference"] == doctest::Approx(-4.0 / 6));
    CHECK(rows[1]["quality"]["falls_behind"] == true);
    CHECK(rows[2]["quality"]["score"] == "acc");
    CHECK(rows[2]["quality"]["correct"] == doctest::Approx(2.0 / 3));

    // A question that is not the one of the log; another recipe.
    files.facts(6, 3);
    const Outcome changed = with({"--resume"});
    check_refused(changed, 4, "facts.jsonl: record 4: differs from the question that ");
    CHECK(has(changed.err, "hint: the file was changed later"));
    check_refused(with({"--resume", "-s", "eval.custom.match=contains"}), 3,
                  "keys that differ: eval.custom.match");
    CHECK(file_text(log) == text);
  }

  TEST_CASE("questions that are added to a file are judged by --resume, those of before are kept") {
    const Files files;
    const fs::path log = files.folder / "log.jsonl";
    const auto ask = [&](int n, const std::string& resume) {
      return eval({"--task", files.facts(n, n), "-o", log.string(), "-s", "run.batch=1", resume});
    };
    CHECK(ask(2, "--no-progress").status == 0);
    const std::string before = file_text(log);
    const Outcome more = ask(3, "--resume");
    CAPTURE(more.err);
    CHECK(more.status == 0);
    CHECK(has(more.err, "resuming after 2 cases"));
    CHECK(has(more.out, "3 cases per task"));
    CHECK(file_text(log).starts_with(before));
  }

  TEST_CASE("eval.cases draws from a file, and a note says so; match finds answers anywhere") {
    const Files files;
    const std::string facts = files.facts(5, 5);
    const Outcome some = eval({"--task", facts, "-s", "eval.cases=3"});
    CHECK(some.status == 0);
    CHECK(has(some.out, "3 cases per task"));
    CHECK(has(some.err, "3 of 5 questions, drawn by run.seed (all: -s eval.cases=5)"));
    json later = fact(0);
    later["question"] = "\n\nQuestion: What is the special magic value for amber-anchor?\nAnswer:";
    const std::string file = files.write("later.jsonl", {later});
    const auto score = [&](const std::string& match) {
      const Outcome run = eval({"--task", file, "-s", "eval.custom.match=" + match, "-s",
                                "eval.protocols=[dense]", "--format", "jsonl"});
      REQUIRE(run.status == 0);
      return json_lines(run.out)[0]["quality"]["correct"].get<double>();
    };
    CHECK(score("start") == 0);  // the sentence comes first
    CHECK(score("contains") == 1);
  }

  TEST_CASE(
      "a recipe names files by its own folder; --dry-run plans, built-in tasks without tokenizer "
      "too") {
    const Files files;
    files.facts(2, 2);
    const std::string recipe =
        files.folder
            .write(
                "r.yaml",
                "kind: eval\nversion: 1\nmodel: {path: tiny-16m}\neval:\n  tasks: [facts.jsonl]\n"
                "  policies:\n    - {name: near, kind: streaming}\n")
            .string();
    const auto run = [&](std::vector<std::string> more) {
      more.insert(more.begin(), {"-r", recipe, "--device", "cpu"});
      return run_process(program("pig-eval"), {.arguments = std::move(more)});
    };
    CHECK(has(run({}).out, "2 cases per task"));
    CHECK(has(run({"--dry-run"}).out, "memory "));
    CHECK(has(eval({"-m", "synthetic:llama-3.2-1b", "--task", "needle1", "--dry-run"}).out,
              "memory "));
    check_refused(eval({"-m", "synthetic:llama-3.2-1b", "--task", "needle1"}), 4,
                  "questions need a tokenizer, but the model has none");
    files.folder.write(
        "r.yaml",
        "kind: eval\nversion: 1\nmodel: {path: tiny-16m}\neval:\n  tasks: [facts.jsonl]\n"
        "  policies:\n    - {name: near, kind: streaming}\n    - {name: full}\n");
    check_refused(run({}), 3,
                  "r.yaml:8:7: eval.policies: 'full' is the name of full attention, which is "
                  "always judged\n  hint: leave it out");
  }

  TEST_CASE("what is wrong with a file is said before anything runs") {
    const Files files;
    const auto refused = [&](const std::string& text, const std::string& says) {
      const std::string file = files.folder.write("mine.jsonl", text).string();
      check_refused(eval({"--task", file}), 4, says);
    };
    check_refused(eval({"--task", "none.jsonl"}), 4,
                  "none.jsonl: the file does not exist, but eval.tasks names it\n  hint: a task "
                  "whose name has a slash or ends in .jsonl is a file of questions\n");
    check_refused(eval({"--task", "mine"}), 3, "unknown task 'mine'");
    refused("",
            "mine.jsonl: expected questions, found none\n  hint: write one question a line: "
            "{\"prompt\"");
    refused("{\"prompt\": \"a\", \"answer\": \"b\"}\n{\"prompt\": \"a\"}\n",
            "mine.jsonl:2: the key 'answer' is missing\n  hint: add the correct text");
    refused("{\"prompt\": \"a\", \"answer\": \"b\"\n", "mine.jsonl:1:");
    refused("{\"prompt\": \"\xE9\", \"answer\": \"b\"}\n", "UTF-8");
    refused(choice(0, 3).dump(),
            "mine.jsonl:1: the answer is the number 3, which is not one of the 3 choices\n  hint: "
            "give the text of the correct choice, or its index from 0 to 2");
    const std::string file = files.facts(3, 3);
    check_refused(eval({"--task", file, "-s", "run.context=64"}), 4,
                  "tokens with its answer, but the context of tiny-16m is 64; 3 of 3 questions do "
                  "not fit\n  hint: raise run.context");
    const std::string which = files.write("which.jsonl", {choice(0, 0)});
    check_refused(
        eval({"--task", which, "-s", "eval.protocols=[dense]", "-s",
              "eval.policies=[{name: c, sparse: {kind: griffin}, spec: {gamma: 4, verify: "
              "match}}]"}),
        3, "eval.policies: 'c' has spec, which does not support choices, but ");
  }

  TEST_CASE("a text ends with the model's own token, which is no part of it") {
    const Files files;
    const fs::path model = files.folder / "model";
    fs::copy(tandem::test::source_dir() / "recipes/models/tiny-16m", model);
    for (const char* name : {"config.json", "generation_config.json"}) {
      json config = json::parse(file_text(model / name));
      config["eos_token_id"] = 29;  // the full stop
      std::ofstream(model / name) << config;
    }
    const fs::path log = files.folder / "log.jsonl";
    CHECK(eval({"-m", model.string(), "--task", files.facts(1, 1), "-o", log.string()}).status ==
          0);
    for (const char* protocol : {"dense", "sparse"})
      CHECK(json_lines(file_text(log))[1]["texts"]["full"][protocol] ==
            fmt::format(" {}", value(0)));
  }

  TEST_CASE("a warning where full attention answers none of them") {
    const Files files;
    const Outcome run = eval({"--task", files.facts(2, 0)});
    CHECK(run.status == 0);
    CHECK(has(run.err, "full attention answers 0 of 2 questions, so these tasks cannot"));
  }

  TEST_CASE("answers of some FFN channels are corrected to those of the model") {
    const Files files;
    const std::string facts = files.facts(3, 3);
    const auto rows = json_lines(
        eval({"--task", facts, "-s", "eval.protocols=[dense]", "-s",
              "eval.policies=[{name: c, sparse: {kind: griffin}, spec: {gamma: 4, verify: match}}]",
              "--format", "jsonl"})
            .out);
    REQUIRE(rows.size() == 2);
    CHECK(rows[1]["quality"]["correct"] == 1);
    CHECK(rows[1]["quality"]["spec"]["rounds"] > 0);
  }

  TEST_CASE("an interruption keeps the questions judged so far") {
    const Files files;
    const std::string facts = files.facts(400, 400);
    const fs::path log = files.folder / "log.jsonl";
    Launch launch;
    launch.signal = SIGINT;
    launch.signal_when = [&] {
      return fs::exists(log) && std::ranges::count(file_text(log), '\n') > 1;
    };
    const Outcome run = eval(
        {"--task", facts, "-s", "eval.cases=400", "-s", "run.batch=1", "-o", log.string()}, launch);
    CHECK(run.status == 130);
    CHECK(has(run.out, "own questions"));
    CHECK(file_text(log).back() == '\n');
    CHECK(json_lines(file_text(log)).size() < 401);
  }

  TEST_CASE("the recipes for a model of one's own name none, have plans for 1B and 8B, and run") {
    const auto run = [](const char* tool, std::vector<std::string> more) {
      more.insert(more.end(), {"--device", "cpu", "--no-progress"});
      Launch launch{.arguments = std::move(more)};
      launch.variables["TANDEM_CACHE_DIR"] = tandem::test::build_dir() / "test_cache";
      return run_process(program(tool), launch);
    };
    const fs::path recipes = tandem::test::source_dir() / "recipes/my-model";
    for (const auto& entry : fs::directory_iterator(recipes)) {
      const std::string text = file_text(entry.path());
      for (const char* name : {"tiny", "synthetic", "path:"}) CHECK_FALSE(has(text, name));
    }
    const Files files;
    std::string ids, records;
    for (int i = 0; i < 150; ++i) {
      ids += R"({"ids": [1, 2, 3, 4, 5, 6, 7, 8], "supervised": [[4, 8]]})"
             "\n";
      records += json{{"instruction", fmt::format("Say {}.", i)}, {"output", "Aye."}}.dump() + "\n";
    }
    const std::string data = files.folder.write("ids.jsonl", ids).string();
    for (const std::string shape : {"synthetic:llama-3.2-1b", "synthetic:qwen3-8b"}) {
      CAPTURE(shape);
      const std::string limit = "run.host_memory_limit=64GiB";
      const auto plan = [&](const char* tool, const std::string& recipe,
                            std::vector<std::string> more) {
        more.insert(more.end(), {"-r", recipe, "-m", shape, "--dry-run", "-s", limit});
        const Outcome planned = run(tool, std::move(more));
        CAPTURE(planned.err);
        CHECK(planned.status == 0);
        CHECK(has(planned.out, "fits"));
      };
      plan("pig-eval", "my-model/eval", {});
      plan("pig-bench", "my-model/bench", {});
      plan("s2ft-train", "my-model/s2ft", {"--data", data});
    }
    const Outcome judged = run("pig-eval", {"-r", "my-model/eval", "-m", "tiny-16m", "-s",
                                            "eval.cases=1", "-s", "eval.lengths=[1000]"});
    CHECK(judged.status == 0);
    for (const char* policy : {"hybrid ", "lsh ", "quest ", "snapkv ", "window "})
      CHECK(has(judged.out, std::string("\n") + policy));
    const Outcome bench =
        run("pig-bench", {"-r", "my-model/bench", "-m", "tiny-16m", "-s", "bench.new_tokens=4",
                          "-s", "bench.min_time=0s", "-s", "run.context=600"});
    CHECK(bench.status == 0);
    CHECK(has(bench.out, "hybrid"));
    const Outcome trained =
        run("s2ft-train", {"-r", "my-model/s2ft", "-m", "tiny-2m", "--data",
                           files.folder.write("records.jsonl", records).string(), "-s",
                           "train.steps=2", "-s", "train.epochs=null", "-s",
                           "train.optimizer.lr=1e-3", "-o", (files.folder / "run").string()});
    CAPTURE(trained.err);
    CHECK(trained.status == 0);
    CHECK(fs::exists(files.folder / "run/adapter"));
    for (const auto& [tool, recipe] :
         {std::pair("pig-eval", "my-model/eval "), std::pair("pig-bench", "my-model/bench "),
          std::pair("s2ft-train", "my-model/s2ft ")}) {
      const std::string list = run_process(program(tool), {.arguments = {"--list-recipes"}}).out;
      CHECK(has(list, recipe));
      CHECK(has(list, "your model of 1B to 8B"));
    }
  }
}
