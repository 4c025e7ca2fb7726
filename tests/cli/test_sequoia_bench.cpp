#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "cli/probe.h"

using namespace tandem::testing;
using Json = nlohmann::json;

namespace {

Outcome sequoia_bench(std::vector<std::string> arguments) {
  const std::vector<std::string> few = {"--device", "cpu",
                                        "-r",       "sequoia/bench-tiny-16m",
                                        "-s",       "bench.new_tokens=12",
                                        "-s",       "bench.batches=1",
                                        "-s",       "run.context=8"};
  arguments.insert(arguments.begin(), few.begin(), few.end());
  return run_process(program("sequoia-bench"), {.arguments = std::move(arguments)});
}

/// Records of trees; plain decoding comes first.
std::vector<Json> trees_of(const Outcome& run) {
  std::vector<Json> all = json_lines(run.out);
  REQUIRE(all.size() >= 1);
  CHECK(all.front()["workload"]["phase"] == "plain");
  CHECK(all.front()["timing"]["decode_step"]["p50"].get<double>() > 0);
  all.erase(all.begin());
  return all;
}

}  // namespace

TEST_SUITE("cli/sequoia-bench") {
  TEST_CASE("a record for each tree of the grid, measured next to predicted") {
    const Outcome run =
        sequoia_bench({"-s", "tree.sizes=[4,8]", "-s", "tree.levels=[3]", "--format", "jsonl"});
    CAPTURE(run.err);
    CHECK(run.status == 0);
    const std::vector<Json> all = trees_of(run);
    REQUIRE(all.size() == 2);
    for (const Json& r : all) {
      CHECK(r["tool"] == "sequoia-bench");
      CHECK(r["workload"]["simulated_acceptance"] == false);
      CHECK(r["workload"]["draft"]["tree"] == "auto");
      CHECK(r["workload"]["vector"]["sha256"].get<std::string>().size() == 64);
      CHECK(r["timing"]["round"]["p50"].get<double>() > 0);
      const Json& spec = r["spec"];
      CHECK(spec["verify"] == "traversal");
      CHECK(spec["tree"]["depth"] == 2);
      CHECK(spec["tree"]["widths"].size() == 3);
      CHECK(spec["round_ms"].get<double>() > 0);
      CHECK(spec["predicted_over_measured"].get<double>() > 0);
      CHECK(spec["speedup_predicted"] == r["predicted"]["speedup"]);
      CHECK(r["predicted"]["times_from"] == "timed forwards");
      CHECK(spec["mean_tokens_per_round"].get<double>() >= 1);
      CHECK(spec["mean_tokens_per_round"].get<double>() <= 3);
      CHECK(spec["tokens_per_round_expected"].get<double>() > 1);
      CHECK_FALSE(spec.contains("alpha"));  // of trees there is none
      CHECK(r["latency"]["tpot_ms_p50"].get<double>() > 0);
    }
    CHECK(all[0]["workload"]["phase"] == "rounds tiny-2m tree 4x3");
    CHECK(all[0]["spec"]["tree"]["size"] == 4);
    CHECK(all[1]["spec"]["tree"]["size"] == 8);
    CHECK(all[0]["spec"]["tree"]["sha256"] != all[1]["spec"]["tree"]["sha256"]);
  }

  TEST_CASE("simulated acceptance is named wherever the figure is") {
    const Outcome run =
        sequoia_bench({"-s", "tree.sizes=[4]", "-s", "tree.levels=[3]", "-s", "bench.simulate=true",
                       "-s", "bench.predict=no", "--format", "jsonl"});
    CHECK(run.status == 0);
    const Json r = trees_of(run).at(0);
    CHECK(r["workload"]["simulated_acceptance"] == true);
    CHECK(r["workload"]["vector"]["file"].get<std::string>().find("accept-reference.json") !=
          std::string::npos);
    CHECK(r["workload"]["vector"]["sha256"].get<std::string>().size() == 64);
    CHECK(r.dump().find("accepted tokens are simulated") != std::string::npos);
    CHECK(run.err.find("accepted tokens are simulated") != std::string::npos);
    CHECK_FALSE(r.contains("predicted"));
    // Simulated paths scatter about what the vector makes of the tree, which a token's time is of.
    const Json& spec = r["spec"];
    CHECK(spec["ms_per_token"].get<double>() ==
          doctest::Approx(spec["round_ms"].get<double>() /
                          spec["tokens_per_round_expected"].get<double>()));
  }

  TEST_CASE("trees of a file, and chains, next to each other: all greedy text is the same") {
    const std::string tree = (tandem::test::source_dir() / "recipes/sequoia/tree-8.json").string();
    const Outcome run = sequoia_bench(
        {"-s", "model.compute=f32", "-s", "bench.predict=no", "-s", "spec.gamma=2", "-s",
         "bench.drafts=[{name: pair, kind: model, path: tiny-2m, keys: full, tree: " + tree +
             "}, {name: self, keys: full, tree: " + tree +
             "}, {name: chain, kind: model, path: tiny-2m, keys: full}]",
         "--format", "jsonl"});
    CAPTURE(run.err);
    CHECK(run.status == 0);
    const std::vector<Json> all = trees_of(run);
    REQUIRE(all.size() == 3);
    for (const Json& r : all) CHECK(r["spec"]["sequences_as_plain"] == 1);
    CHECK(all[0]["workload"]["draft"]["tree"] == "tree-8.json");
    CHECK(all[0]["spec"]["tree"]["size"] == 8);
    CHECK(all[2]["spec"]["gamma"] == 2);
  }

  TEST_CASE("a tree that no bound of levels allows is told, the others are measured") {
    const Outcome run =
        sequoia_bench({"-s", "tree.sizes=[4,64]", "-s", "tree.levels=[3]", "-s",
                       "tree.max_branch=2", "-s", "bench.predict=no", "--format", "jsonl"});
    CHECK(run.status == 0);
    CHECK(trees_of(run).size() == 1);
    CHECK(run.err.find("no tree of 64 nodes on at most 3 levels") != std::string::npos);
  }

  TEST_CASE("bad settings say what is wrong") {
    const auto fails = [](std::vector<std::string> with, int status, const std::string& text) {
      const Outcome run = sequoia_bench(std::move(with));
      CAPTURE(run.err);
      CHECK(run.status == status);
      CHECK(run.err.find(text) != std::string::npos);
    };
    fails({"-s", "accept.path=\"\""}, 3,
          "accept.path: expected an acceptance vector to choose the trees of 'tiny-2m' by");
    fails({"-s", "bench.drafts=[{name: p, kind: model, tree: auto}]"}, 3,
          "'p' is of kind model, which needs path");
    fails({"-s", "bench.drafts=[{name: l, kind: ngram, tree: auto}]"}, 3,
          "'l' has a tree, which needs kind model or self; change the kind, or leave tree out");
    fails({"-s", "bench.drafts=[{name: p, kind: model, path: tiny-2m, tree: none-such.json}]"}, 8,
          "none-such.json");
    fails({"-s", "tree.sizes=[1024]", "-s", "run.batch=5", "-s", "bench.predict=no"}, 8,
          "tree.sizes: 1024 nodes for each of 5 sequences exceed the 4096 rows of a step");
    fails({"-s", "run.context=100000"}, 3, "run.context: ");
    fails({"-s", "bench.predict=only", "-s", "bench.hardware.card=h200"}, 3,
          "'tiny-2m' proposes trees, which need measured times for a prediction");
    // Keys of before drafts had names.
    fails({"-s", "draft.path=tiny-2m"}, 3,
          "unknown key 'draft'\n  hint: it was renamed to bench.drafts");
    fails({"-s", "bench.texts=1"}, 3, "hint: it was renamed to bench.batches");
    fails({"-s", "bench.predict=false"}, 3, "expected one of no, also, only, found 'false'");
  }

  TEST_CASE("--dry-run prints the plan") {
    const Outcome run = sequoia_bench({"--dry-run"});
    CHECK(run.status == 0);
    CHECK(run.out.find("planned peak") != std::string::npos);
    CHECK(run.out.find("tiny-2m weights") != std::string::npos);
  }
}
