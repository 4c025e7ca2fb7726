#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "cli/probe.h"

using namespace tandem::testing;
using Json = nlohmann::json;

namespace {

Outcome sequoia_bench(std::vector<std::string> arguments) {
  const std::vector<std::string> few = {
      "--device", "cpu",           "-r", "sequoia/bench-tiny-16m", "-s", "bench.new_tokens=12",
      "-s",       "bench.texts=1", "-s", "run.context=8"};
  arguments.insert(arguments.begin(), few.begin(), few.end());
  return run_process(program("sequoia-bench"), {.arguments = std::move(arguments)});
}

}  // namespace

TEST_SUITE("cli/sequoia-bench") {
  TEST_CASE("a record for each tree of the grid, measured beside predicted") {
    const Outcome run =
        sequoia_bench({"-s", "tree.sizes=[4,8]", "-s", "tree.levels=[3]", "--format", "jsonl"});
    CHECK(run.status == 0);
    const std::vector<Json> all = json_lines(run.out);
    REQUIRE(all.size() == 2);
    for (const Json& r : all) {
      CHECK(r["tool"] == "sequoia-bench");
      CHECK(r["workload"]["phase"] == "rounds");
      CHECK(r["workload"]["tree"]["levels"] == 3);
      CHECK(r["workload"]["simulated_acceptance"] == false);
      CHECK(r["spec"]["verify"] == "traversal");
      CHECK(r["spec"]["round_ms"].get<double>() > 0);
      CHECK(r["spec"]["predicted_over_measured"].get<double>() > 0);
      CHECK(r["spec"]["tokens_per_round"].get<double>() >= 1);
      CHECK(r["spec"]["tokens_per_round"].get<double>() <= 3);
    }
    CHECK(all[0]["workload"]["tree"]["size"] == 4);
    CHECK(all[1]["workload"]["tree"]["size"] == 8);
  }

  TEST_CASE("simulated acceptance is named wherever the figure is") {
    const Outcome run =
        sequoia_bench({"-s", "tree.sizes=[4]", "-s", "tree.levels=[3]", "-s", "bench.simulate=true",
                       "-s", "bench.predict=false", "--format", "jsonl"});
    CHECK(run.status == 0);
    const Json r = json_lines(run.out).at(0);
    CHECK(r["workload"]["simulated_acceptance"] == true);
    CHECK(r["workload"]["vector"]["file"].get<std::string>().find("accept-reference.json") !=
          std::string::npos);
    CHECK(r["workload"]["vector"]["sha256"].get<std::string>().size() == 64);
    CHECK(r.dump().find("accepted paths are simulated") != std::string::npos);
    CHECK(run.err.find("accepted paths were simulated") != std::string::npos);
  }

  TEST_CASE("a tree that no bound of levels allows is told, the others are measured") {
    const Outcome run =
        sequoia_bench({"-s", "tree.sizes=[4,64]", "-s", "tree.levels=[3]", "-s",
                       "tree.max_branch=2", "-s", "bench.predict=false", "--format", "jsonl"});
    CHECK(run.status == 0);
    CHECK(json_lines(run.out).size() == 1);
    CHECK(run.err.find("no tree of 64 nodes has at most 3 levels") != std::string::npos);
  }

  TEST_CASE("bad settings say what is wrong") {
    const auto fails = [](std::vector<std::string> with, int status, const std::string& text) {
      const Outcome run = sequoia_bench(std::move(with));
      CAPTURE(run.err);
      CHECK(run.status == status);
      CHECK(run.err.find(text) != std::string::npos);
    };
    fails({"-s", "accept.path=\"\""}, 3, "accept.path: name an acceptance vector");
    fails({"-s", "draft.path=\"\""}, 3, "draft.path: name the model that proposes tokens");
    fails({"-s", "tree.sizes=[1024]", "-s", "run.batch=2"}, 3,
          "tree.sizes: 1024 nodes for each of 2 sequences, a step takes 1024 rows");
    fails({"-s", "run.context=100000"}, 3, "run.context: ");
  }

  TEST_CASE("--dry-run prints the plan") {
    const Outcome run = sequoia_bench({"--dry-run"});
    CHECK(run.status == 0);
    CHECK(run.out.find("trees    3 sizes, 2 bounds of levels") != std::string::npos);
    CHECK(run.out.find("draft weights") != std::string::npos);
  }
}
