#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/probe.h"
#include "io/file.h"
#include "source_dir.h"

using namespace tandem::testing;
using Json = nlohmann::json;

namespace {

/// A few tokens of the embedded models: a second or two.
Outcome acceptance(std::vector<std::string> arguments) {
  const std::vector<std::string> small = {
      "-m",
      "tiny-16m",
      "--device",
      "cpu",
      "-s",
      "run.context=300",
      "-s",
      "run.batch=2",
      "-s",
      "spec.gamma=3",
      "-s",
      "bench={new_tokens: 16, temperatures: [0, 1], drafts: [{name: s64, budget: 64}]}"};
  arguments.insert(arguments.begin(), small.begin(), small.end());
  return run_process(program("magicdec-acceptance"), {.arguments = std::move(arguments)});
}

std::map<std::string, Json> by_phase(const std::string& text) {
  std::map<std::string, Json> records;
  for (const Json& record : json_lines(text)) records[record["workload"]["phase"]] = record;
  return records;
}

}  // namespace

TEST_SUITE("cli/magicdec-acceptance") {
  TEST_CASE("a record for each draft, budget and temperature") {
    const Outcome run = acceptance(
        {"-s",
         "bench.drafts=[{name: s}, {name: k, keys: snapkv, scale: off, refresh: 8}, {name: chunks, "
         "keys: retrieval, page: 8, refresh: 16}, {name: top, keys: topk}, {name: small, kind: "
         "model, path: tiny-2m, keys: full}]",
         "-s", "bench.budgets=[64, 128]", "--format", "jsonl"});
    CAPTURE(run.err);
    CHECK(run.status == 0);
    CHECK(run.err.find("vLLM's mean acceptance length") != std::string::npos);
    const auto records = by_phase(run.out);
    REQUIRE(records.size() == 2 * 9);
    for (const auto& [phase, record] : records) {
      CAPTURE(phase);
      CHECK(record["status"] == "ok");
      CHECK(record["workload"]["distinct_prompts"] == 2);
      const Json &tested = record["acceptance"]["tested"],
                 &drafted = record["acceptance"]["drafted"];
      CHECK(tested["positions"] == 2 * 16);
      CHECK(tested["by_position"].size() == 3);
      CHECK_FALSE(tested.contains("answer"));
      CHECK(tested["alpha"] > 0.2);
      CHECK(tested["alpha"] < 1);
      double length = 1;
      for (const Json& rate : drafted["rate_by_position"]) length += rate.get<double>();
      CHECK(drafted["mean_tokens_per_round"].get<double>() == doctest::Approx(length));
      CHECK(drafted["share_accepted"].get<double>() == doctest::Approx((length - 1) / 3));
      CHECK(drafted["rounds"] <= record["spec"]["rounds"]);
      CHECK(record["spec"]["gamma"] == 3);
    }
    CHECK(records.at("k 64 T 1")["workload"]["draft"]["scale"] == "off");
    CHECK(records.at("k 64 T 1")["workload"]["draft"]["refresh"] == 8);
    CHECK(records.at("chunks 128 T 0")["workload"]["draft"]["chunk"] == 8);
    CHECK(records.at("chunks 128 T 0")["workload"]["draft"]["refresh"] == 16);
    CHECK(records.at("small T 0")["model"]["draft"].get<std::string>().ends_with("tiny-2m"));
    // A better choice of as many keys.
    for (const char* t : {"0", "1"})
      CHECK(records.at(std::string("top 64 T ") + t)["acceptance"]["tested"]["alpha"] >
            records.at(std::string("s 64 T ") + t)["acceptance"]["tested"]["alpha"]);
  }

  TEST_CASE("nested drafts: both levels, by distributions and counted") {
    const Outcome run = acceptance(
        {"-s",
         "bench.drafts=[{name: chunks, keys: retrieval, page: 8}, {name: small, kind: model, path: "
         "tiny-2m, keys: full}, {name: both, kind: nested, self: chunks, small: small}]",
         "-s", "bench.budgets=[64, 128]", "-s", "bench.new_tokens=48", "-s", "spec.gamma1=2", "-s",
         "spec.gamma2=4", "-s", "spec.inner_steps=2", "--format", "jsonl"});
    CAPTURE(run.err);
    CHECK(run.status == 0);
    const auto records = by_phase(run.out);
    REQUIRE(records.size() == 2 * 5);
    for (const char* phase : {"both 64 T 0", "both 64 T 1", "both 128 T 0", "both 128 T 1"}) {
      CAPTURE(phase);
      const Json& record = records.at(phase);
      CHECK(record["workload"]["draft"]["self"] ==
            (std::string(phase).find("128") == std::string::npos ? "chunks 64" : "chunks 128"));
      CHECK_FALSE(record["acceptance"].contains("tested"));
      const Json &around = record["acceptance"]["drafted"],
                 &within = record["acceptance"]["within"], &counts = record["spec"];
      CHECK(around["rounds"] == counts["rounds"]);
      CHECK(within["rounds"] == counts["within"]["rounds"]);
      CHECK(within["by_position"].size() == 2);
      CHECK(around["rate_by_position"].size() <= 6);
      // Sums over distributions, and what was counted, agree.
      for (const auto& [sums, counted] : {std::pair{around, counts}, {within, counts["within"]}}) {
        const double alpha = counted["alpha"], tested = counted["tested"];
        const double error = std::sqrt(alpha * (1 - alpha) / tested);
        CHECK(std::abs(sums["alpha"].get<double>() - alpha) < 3.5 * error + 0.02);
      }
      CHECK(around["by_output"].size() > 4);
      CHECK(around["by_output"][0]["from_token"] == 0);
    }
    const Outcome refused = acceptance(
        {"-s",
         "bench.drafts=[{name: chunks, keys: retrieval, page: 8}, {name: small, kind: model, path: "
         "tiny-2m, keys: full}, {name: both, kind: nested, self: chunks, small: small}]",
         "-s", "bench.speculate=false"});
    CHECK(refused.status == 3);
    CHECK(refused.err.find("'both' is nested, which needs bench.speculate=true") !=
          std::string::npos);
  }

  TEST_CASE("f32: a budget beyond the text accepts everything") {
    const Outcome run =
        acceptance({"-s", "model.compute=f32", "-s",
                    "bench.drafts=[{name: s, budget: 512}, {name: k, keys: snapkv, budget: 512}, "
                    "{name: v, keys: verified, budget: 512}, {name: top, keys: topk, budget: 512}]",
                    "--format", "jsonl"});
    CHECK(run.status == 0);
    const auto records = by_phase(run.out);
    CHECK(records.size() == 8);
    for (const auto& [phase, record] : records) {
      CAPTURE(phase);
      CHECK(record["acceptance"]["tested"]["alpha"].get<double>() ==
            doctest::Approx(1).epsilon(1e-4));
      CHECK(record["acceptance"]["drafted"]["alpha"].get<double>() ==
            doctest::Approx(1).epsilon(1e-4));
      CHECK(record["acceptance"]["drafted"]["mean_tokens_per_round"].get<double>() ==
            doctest::Approx(4).epsilon(1e-4));
    }
  }

  TEST_CASE("documents: the answer, and what the target writes after it") {
    const Outcome run = acceptance({"-s", "bench.prompts=needle1", "-s", "bench.new_tokens=24",
                                    "-s", "bench.speculate=false", "--format", "jsonl"});
    CAPTURE(run.err);
    CHECK(run.status == 0);
    const auto records = by_phase(run.out);
    REQUIRE(records.size() == 2);
    for (const auto& [phase, record] : records) {
      const Json& tested = record["acceptance"]["tested"];
      CHECK(tested["positions"] == 2 * 24);
      CHECK(tested["answer"]["positions"] > 2);
      CHECK(tested["answer"]["positions"] < 2 * 24);
      CHECK_FALSE(record["acceptance"].contains("drafted"));
      CHECK(record["workload"]["dataset"] == "generated");
    }
  }

  TEST_CASE("acceptance vectors of all drafts and temperatures, by kind of text") {
    const TemporaryFolder folder;
    const std::string path = (folder / "vectors.jsonl").string();
    const std::string log =
        file_text(tandem::test::source_dir() / "recipes/demo/lighthouse-logbook.txt");
    const auto measure = [&](const std::string& prompt, std::vector<std::string> more) {
      more.insert(
          more.end(),
          {"-s",
           "model.compute=f32",
           "-s",
           "run.context=1000",
           "-s",
           "spec.gamma=1",
           "-s",
           "accept.width=3",
           "-p",
           prompt,
           "-n",
           "100",
           "-s",
           "bench.drafts=[{name: all, cache: {kind: full}}, {name: few, cache: {kind: snapkv}, "
           "budget: 64}, {name: small, kind: model, path: tiny-2m, cache: {kind: streaming, "
           "recent: 60}}]",
           "-s",
           "bench.prompts=given",
           "-s",
           "bench.speculate=false",
           "-o",
           path});
      return acceptance(more);
    };
    const std::string prompt = log.substr(0, 2000);
    const Outcome run = measure(prompt, {});
    CAPTURE(run.err);
    CHECK(run.status == 0);
    const std::string text = tandem::io::read_file(path);
    std::map<std::string, Json> records;
    for (const Json& record : json_lines(text)) {
      const Json& work = record["workload"];
      records[work["draft"]["name"].get<std::string>() +
              (work["temperature"] == 0 ? " greedy" : " drawn")] = record;
    }
    REQUIRE(records.size() == 2 * 3);
    for (const auto& [name, record] : records) {
      CAPTURE(name);
      const Json &vector = record["acceptance"]["vector"], &tested = record["acceptance"]["tested"];
      CHECK(vector["samples"] == 100);
      CHECK(vector["method"] == (name.ends_with("greedy") ? "topk-greedy" : "sequoia"));
      const double first = vector["p"][0], alpha = tested["alpha"];
      if (name.starts_with("all"))
        CHECK(first == doctest::Approx(1).epsilon(1e-4));
      else
        CHECK(first < 0.99);
      // Both texts are drawn at temperature 1: a first child is accepted as a chain's token is.
      const double error = tested["alpha_stderr"].get<double>() + vector["stderr"][0].get<double>();
      if (name.ends_with("drawn")) CHECK(std::abs(first - alpha) < 3 * error + 1e-3);
    }
    // Done already, but only for this prompt.
    CHECK(measure(prompt, {"--resume"}).status == 0);
    CHECK(tandem::io::read_file(path) == text);
    CHECK(measure("Once upon a time", {"--resume", "-s", "bench.rates=true"}).status == 0);
    CHECK(json_lines(tandem::io::read_file(path)).size() == 2 * records.size());
    std::ofstream(path) << text;

    // No record says that the command line was wrong.
    const std::filesystem::path none = folder / "none.jsonl";
    CHECK(acceptance({"-p", "a", "-o", none.string()}).status == 2);
    CHECK_FALSE(std::filesystem::exists(none));

    // Trees for one of them.
    const auto search = [&](const std::string& records_file) {
      return run_process(program("sequoia-tree-search"),
                         {.arguments = {"--accept", records_file, "-s", "tree.sizes=[4]"}});
    };
    const Outcome many = search(path);
    CHECK(many.status == 4);
    CHECK(many.err.find("expected one record with an acceptance vector, found 6: 'all T 0 ") !=
          std::string::npos);
    const std::string line = text.substr(0, text.find('\n') + 1);
    CHECK(search(folder.write("one.jsonl", line).string()).status == 0);
  }

  TEST_CASE("a sweep goes on where it stopped, and what fails is recorded") {
    const TemporaryFolder folder;
    const std::string path = (folder / "records.jsonl").string();
    const std::vector<std::string> sweep = {"--sweep",
                                            "spec.gamma=1,2",
                                            "-o",
                                            path,
                                            "-s",
                                            "bench.drafts=[{name: s64, budget: 64}, {name: v, "
                                            "kind: model, path: none-such, cache: {kind: full}}]"};
    const Outcome first = acceptance(sweep);
    CAPTURE(first.err);
    CHECK(first.status == 8);
    CHECK(first.err.find("none-such") != std::string::npos);
    auto lines = json_lines(tandem::io::read_file(path));
    CHECK(lines.size() == 2 * 3);
    CHECK(lines[0]["status"] == "failed");
    CHECK(lines[0]["workload"]["phase"] == "v");
    // Without the last point, and with a torn line.
    std::string text;
    for (size_t i = 0; i < 3; ++i) text += lines[i].dump() + "\n";
    std::ofstream(path) << text << "{\"schema\": ";
    std::vector<std::string> again = sweep;
    again.push_back("--resume");
    const Outcome second = acceptance(again);
    CHECK(second.status == 8);
    std::map<std::string, int> ok;
    for (const Json& line : json_lines(tandem::io::read_file(path)))
      if (line["status"] == "ok")
        ++ok[line["point"].get<std::string>() + line["workload"]["phase"].get<std::string>()];
    CHECK(ok.size() == 4);
    for (const auto& [point, n] : ok) CHECK(n == 1);
  }

  TEST_CASE("plans, and what is refused") {
    const Outcome plan = acceptance({"--dry-run"});
    CHECK(plan.status == 0);
    CHECK(plan.out.find("fits") != std::string::npos);
    for (const char* recipe :
         {"magicdec/acceptance-tiny-16m", "magicdec/acceptance-16k-tiny-16m",
          "triforce/acceptance-16k-tiny-16m", "triforce/acceptance-rebuild-tiny-16m"})
      CHECK(run_process(program("magicdec-acceptance"),
                        {.arguments = {"-r", recipe, "--dry-run", "--device", "cpu"}})
                .status == 0);
    const std::string tree = (tandem::test::source_dir() / "recipes/sequoia/tree-8.json").string();
    struct Case {
      std::vector<std::string> arguments;
      int status;
      const char *says, *hint;
    };
    for (const Case& c :
         {Case{{"-s", "bench.drafts=[{name: n, kind: ngram}]"},
               3,
               "'n' is of kind ngram, expected self",
               "expected self, model or nested"},
          Case{{"-s", "bench.drafts=[{name: s, budget: 4}]"},
               3,
               "expected more than the 4 tokens that are always read",
               ""},
          Case{{"-s", "bench.drafts=[{name: s}]", "-s", "bench.budgets=[64,64]"},
               3,
               "uses the name 's 64' twice",
               ""},
          Case{{"-s", "spec.gamma=16", "-s", "bench.new_tokens=16"},
               3,
               "spec.gamma: is 16 tokens",
               "raise bench.new_tokens"},
          Case{{"-s", "spec.gamma=20"}, 3, "spec.gamma: 20 is out of range, expected 1 .. 16", ""},
          Case{{"-s", "sampling.temperature=1"}, 3, "cannot be combined", "set bench.temperatures"},
          Case{{"-p", "a"}, 2, "expected no prompt, since bench.prompts is prose", "prompts=given"},
          Case{{"-s", "bench.prompts=given"}, 2, "expected a prompt, found none", "-p TEXT"},
          Case{{"-s", "bench.rates=false"}, 3, "accept.width: expected at least 1 child", "set it"},
          Case{{"-s", "accept.width=2", "-s", "accept.tree=" + tree, "-s", "accept.record=r"},
               3,
               "expected one draft at one temperature, found 1 and 2",
               "list one of each"},
          Case{{"-s", "accept.width=2", "-s", "bench.drafts=[{name: n, kind: nested}]"},
               3,
               "'n' is nested and proposes linear drafts",
               "set accept.width=0"},
          Case{{"-s", "run.context=20000"}, 3, "tiny-16m supports only 16384", "lower run.context"},
          Case{{"-s", "bench.prompts=kv", "-s", "run.context=100"},
               4,
               "is too short",
               "set at least"}}) {
      CAPTURE(c.says);
      const Outcome run = acceptance(c.arguments);
      CHECK(run.status == c.status);
      CHECK(run.err.find(c.says) != std::string::npos);
      CHECK(run.err.find(c.hint) != std::string::npos);
    }
  }
}
