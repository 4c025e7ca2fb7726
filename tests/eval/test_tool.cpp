#include <doctest/doctest.h>

#include <csignal>
#include <fstream>

#include "eval/tool_testing.h"
#include "io/json.h"

using namespace eval_testing;
using tandem::testing::Outcome;
namespace fs = std::filesystem;

namespace {

const std::vector<std::string> kShort = {
    "-s", "eval.tasks=[needle1, vt]",
    "-s", "eval.lengths=[300]",
    "-s", "eval.cases=2",
    "-s", "eval.policies=[{name: near, kind: streaming, recent: 32}]"};

}  // namespace

TEST_SUITE("eval/tool") {
  TEST_CASE("it prints a table and logs a line for each case") {
    const LogPath log;
    const Outcome o =
        run(with(kShort, {"-s", "model.compute=f32", "-o", log.path.string(), "--format", "md"}));
    CHECK(o.status == 0);
    CHECK(o.err == "");
    CHECK(count(o.out, "300 tokens, ") == 2);  // a table a protocol
    CHECK(count(o.out, "| full ") == 2);
    CHECK(count(o.out, "| needle1 |") == 2);
    CHECK(count(o.out, " mean |") == 2);
    CHECK(count(log.text(), "\n") == 1 + 2 * 2);
    CHECK(run(with(kShort, {"-o", log.path.string()})).status == 2);  // exists
  }

  TEST_CASE("records of --format jsonl carry the scores") {
    const Outcome o = run(with(kShort, {"--format", "jsonl"}));
    REQUIRE(o.status == 0);
    const auto first = tandem::io::parse_json(o.out.substr(0, o.out.find('\n')), "stdout");
    CHECK(first.at("schema") == "tandem.result/1");
    CHECK(first.at("quality").at("task") == "needle1");
    CHECK(first.at("quality").at("n_cases") == 2);
    CHECK(first.at("quality").at("reads").at("selected") == 1.0);
    CHECK(first.at("quality").at("reads").at("bytes") > 0.0);
  }

  TEST_CASE("policies with keys in host memory are planned beside full attention, for a GPU") {
    const std::vector<std::string> hosted = {
        "-s",
        "eval.tasks=[needle1]",
        "-s",
        "eval.lengths=[4096]",
        "-s",
        "eval.cases=2",
        "-s",
        "eval.policies=[{name: near, kind: streaming, recent: 32},"
        "{name: far, kind: hybrid, place: host}]"};
    const Outcome o =
        run(with(hosted, {"--dry-run", "--device", "cuda", "-s", "run.plan_for=h200"}));
    CHECK(o.err == "");
    CHECK(o.status == 0);
    CHECK(o.out.find("far kv") != std::string::npos);
    CHECK(o.out.find("far weights") != std::string::npos);
    // Of its engine: who attends, and what lies where.
    const size_t engine = o.out.find("engine   far:\nkv       ");
    REQUIRE(engine != std::string::npos);
    CHECK(o.out.find("attend   ", engine) != std::string::npos);
    CHECK(o.out.find(" 0 B of KV", engine) == std::string::npos);
    CHECK(run({"-r", "pig/eval-across-tiny-16m", "--dry-run", "-s", "run.plan_for=h200"}).status ==
          0);
    const Outcome on_cpu = run(with(hosted, {"--device", "cpu"}));
    CHECK(on_cpu.status == 6);
    CHECK(on_cpu.err.find("cache.place") != std::string::npos);
  }

  TEST_CASE("--resume judges what is missing, after a torn line too, with the same table") {
    const LogPath log;
    const auto arguments = with(kShort, {"-o", log.path.string()});
    const Outcome whole = run(arguments);
    REQUIRE(whole.status == 0);
    const std::string text = log.text();
    {
      std::ofstream file(log.path);
      file << text.substr(0, text.size() - 20);
    }
    const Outcome resumed = run(with(arguments, {"--resume"}));
    CHECK(resumed.status == 0);
    CHECK(resumed.out == whole.out);
    CHECK(resumed.err.find("resuming after 3 cases") != std::string::npos);
    CHECK(log.text() == text);
    const Outcome other = run(with(arguments, {"--resume", "-s", "eval.cases=3"}));
    CHECK(other.status == 3);
    CHECK(other.err.find("keys that differ: eval.cases") != std::string::npos);
  }

  TEST_CASE("groups of cases give the log of single ones") {
    const LogPath log;
    const auto arguments = with(kShort, {"-s", "model.compute=f32", "-s", "eval.cases=3", "-o",
                                         log.path.string(), "-s", "run.batch=1"});
    const Outcome alone = run(arguments);
    REQUIRE(alone.status == 0);
    const auto cases = [&] { return log.text().substr(log.text().find('\n')); };
    const std::string text = cases();
    fs::remove(log.path);
    const Outcome together = run(with(arguments, {"-s", "run.batch=2"}));
    REQUIRE(together.status == 0);
    CHECK(cases() == text);
    CHECK(together.out == alone.out);
  }

  TEST_CASE("perplexity comes with KL, also after a resume") {
    const LogPath log;
    const std::vector<std::string> arguments = {
        "--task", "perplexity",
        "-s",     "run.context=512",
        "--data", (source_dir() / "recipes/demo/questions.txt").string(),
        "-s",     "eval.policies=[{name: near, kind: streaming, recent: 16}]",
        "-o",     log.path.string()};
    const Outcome o = run(arguments);
    CHECK(o.status == 0);
    CHECK(o.out.find("KL mean") != std::string::npos);
    CHECK(run(with(arguments, {"--resume"})).out == o.out);
    // The last tokens alone, after one prefill.
    const Outcome last = run({"--task", "perplexity", "-s", "run.context=512", "-s",
                              "eval.scored=100", "-s", "eval.cases=3", "--format", "jsonl", "-s",
                              "eval.policies=[{name: near, kind: streaming, recent: 16}]"});
    REQUIRE(count(last.out, "\n") == 2);
    const auto near = tandem::io::parse_json(last.out.substr(last.out.find('\n') + 1), "stdout");
    CHECK(near.at("quality").at("n_tokens") == 300);
    CHECK(near.at("quality").at("kl_stderr") > 0.0);
  }

  TEST_CASE("attention errors: a row a policy, in records too, also after a resume") {
    const LogPath log;
    const std::vector<std::string> arguments = {
        "--task",
        "attention",
        "-s",
        "run.context=1024",
        "-s",
        "eval.cases=2",
        "-s",
        "eval.rows=8",
        "-s",
        "eval.policies=[{name: best, kind: topk, dense_layers: [0]}, {name: near, kind: "
        "streaming, recent: 16}]",
        "-o",
        log.path.string()};
    const Outcome o = run(arguments);
    CHECK(o.status == 0);
    CHECK(o.out.find("ranking loss") != std::string::npos);
    CHECK(run(with(arguments, {"--resume"})).out == o.out);
    const Outcome records = run(with(arguments, {"--resume", "--format", "jsonl"}));
    REQUIRE(count(records.out, "\n") == 2);
    const auto best =
        tandem::io::parse_json(records.out.substr(0, records.out.find('\n')), "stdout");
    const auto& quality = best.at("quality");
    CHECK(quality.at("task") == "attention");
    CHECK(quality.at("policy") == "best");
    CHECK(quality.at("error").at("mean") > 0.0);
    CHECK(quality.at("error").contains("stderr"));
    CHECK(quality.at("ranking_loss").at("mean") <= 1e-6);
    CHECK(quality.at("selected") == quality.at("exact"));
    CHECK(run({"--task", "attention"}).status == 3);  // no policy
  }

  TEST_CASE("a dry run prints the plan of each part and writes nothing") {
    const LogPath log;
    const Outcome o = run({"--task", "vt", "--task", "perplexity", "-s", "eval.lengths=[300]",
                           "--dry-run", "-o", log.path.string()});
    CHECK(o.status == 0);
    CHECK(count(o.out, "memory ") == 2);
    CHECK(!fs::exists(log.path));
  }

  TEST_CASE("perplexity plans for its text, not for the model's whole context") {
    const tandem::test::TemporaryFolder folder;
    const auto ids = folder.write("ids.json", "[5, 6, 7, 8, 9]");
    const Outcome o =
        run({"-m", "synthetic:llama-3.1-8b", "--task", "perplexity", "--data", ids.string(),
             "--dry-run", "-s", "run.host_memory_limit=64GiB", "-s", "model.compute=f32"});
    CHECK(o.status == 0);
    CHECK(o.out.find("kv 16.0 MiB") != std::string::npos);  // one page of 64 tokens, 256 KiB each
  }

  TEST_CASE("errors name the remedy") {
    const auto check = [](const std::vector<std::string>& arguments, int status,
                          const std::string& text) {
      const Outcome o = run(arguments);
      CHECK(o.status == status);
      CHECK(o.out == "");
      CAPTURE(o.err);
      CHECK(o.err.find(text) != std::string::npos);
    };
    check({"--task", "neddle"}, 3,
          "expected one of needle1, needle8, kv, vt, cwe, fwe, qa, perplexity, attention");
    check({"--task", "vt", "-s", "eval.lengths=[32768]"}, 3,
          "the context of tiny-2m is only 16384");
    check({"--task", "vt", "-s", "run.context=1Mi"}, 3, "supports 16384");
    check({"--task", "vt", "-s", "eval.lengths=[2000]", "--haystack",
           (source_dir() / "recipes/demo/questions.txt").string()},
          4, "are needed");
    check({"--task", "vt", "-s", "eval.lengths=[50]"}, 4, "is too short");
    const tandem::test::TemporaryFolder folder;
    const std::string latin = folder.write("latin.txt", "caf\xE9").string();
    const std::string named = "text: byte 3 (0xE9) is not UTF-8 (in " + latin + ")";
    check({"--task", "vt", "-s", "eval.lengths=[300]", "--haystack", latin}, 4, named);
    check({"--task", "perplexity", "--data", latin}, 4, named);
    check({"--task", "vt", "--resume"}, 2, "needs the log to continue");
    check({"--task", "vt", "-s", "model.state=/dev/null"}, 3,
          "model.state: is supported only by the generators");
    check({}, 3, "eval.tasks is not set");
  }

  TEST_CASE("an interruption keeps the cases judged so far") {
    const LogPath log;
    tandem::testing::Launch launch;
    launch.signal = SIGINT;
    launch.signal_when = [&] { return fs::exists(log.path) && count(log.text(), "\n") > 1; };
    const Outcome o = run({"--task", "needle1", "-s", "eval.lengths=[200]", "-s",
                           "eval.cases=100000", "-o", log.path.string()},
                          launch);
    CHECK(o.status == 130);
    CHECK(o.out.find("needle1") != std::string::npos);  // the table of what is there
    CHECK(count(log.text(), "\n") > 1);
    CHECK(log.text().back() == '\n');
    CHECK(o.seconds < 30);
  }

  TEST_CASE("installed recipes pass --check and print as they are read") {
    for (const auto& entry : fs::recursive_directory_iterator(source_dir() / "recipes")) {
      const std::string name = entry.path().string();
      if (entry.path().filename().string().starts_with("eval-") == false) continue;
      const std::string text = tandem::io::read_file(entry.path());
      std::vector<std::string> arguments = {"-r", name};
      if (count(text, "commonsense]") + count(text, "arithmetic]") > 0)
        arguments.insert(arguments.end(), {"--sets", source_dir().string()});
      // Some are for a GPU, which need not be here.
      if (count(text, "device: cuda") > 0)
        CHECK(run(with(arguments, {"--dry-run", "-s", "run.plan_for=h200"})).status == 0);
      else
        CHECK(run(with(arguments, {"--check"})).status == 0);
      const Outcome once = run(with(arguments, {"--print-recipe"}));
      CHECK(once.status == 0);
      CHECK(count(once.out, "policies: [{name: ") == count(text, "policies:\n"));
    }
  }
}
