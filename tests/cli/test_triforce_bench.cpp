// Rounds within rounds as magicdec-bench measures them.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "cli/probe.h"
#include "source_dir.h"

using namespace tandem::testing;
using Json = nlohmann::json;

namespace {

Outcome bench(std::vector<std::string> arguments) {
  const std::vector<std::string> few = {
      "-r", "triforce/bench-tiny-16m", "--device", "cpu",
      "-s", "run.context=256",         "-s",       "bench.new_tokens=8",
      "-s", "bench.batches=1"};
  arguments.insert(arguments.begin(), few.begin(), few.end());
  return run_process(program("magicdec-bench"), {.arguments = std::move(arguments)});
}

}  // namespace

TEST_SUITE("cli/magicdec-bench/nested") {
  TEST_CASE("nested drafts are measured beside both that they are made of") {
    const Outcome run = bench({"--format", "jsonl"});
    CAPTURE(run.err);
    REQUIRE(run.status == 0);
    std::set<std::string> names;
    for (const Json& record : json_lines(run.out)) {
      const std::string phase = record["workload"]["phase"];
      for (const char* name : {"plain", "small", "retrieval", "nested"})
        if (phase.find(name) != std::string::npos) names.insert(name);
      if (phase.find("nested") == std::string::npos) continue;
      const Json &spec = record["spec"], &within = spec["within"];
      CHECK(within["alpha"] >= 0);
      CHECK(within["alpha"] <= 1);
      CHECK(within["draft_level_ms"] > 0);
      CHECK(within["target_ms"] > 0);
      CHECK(within["gamma"] == 2);
      CHECK(within["emitted"] >= spec["drafted"]);
      CHECK(spec["alpha"] >= 0);
    }
    CHECK(names == std::set<std::string>{"nested", "plain", "retrieval", "small"});
  }

  TEST_CASE("trees within are predicted by forwards of the rounds within, timed apart") {
    const Outcome run = bench(
        {"--format", "jsonl", "-s",
         "accept.path=" +
             (tandem::test::source_dir() / "recipes/sequoia/accept-geometric.json").string(),
         "-s", "tree.sizes=[5]", "-s", "tree.levels=[3]", "-s",
         "bench.drafts=[{name: small, kind: model, path: tiny-2m, budget: 64}, {name: "
         "retrieval, keys: retrieval, budget: 64, page: 8}, {name: nested, kind: nested, "
         "self: retrieval, small: small, tree: auto}, {name: nested again, kind: nested, self: "
         "retrieval, small: small, tree: auto}]"});
    CAPTURE(run.err);
    REQUIRE(run.status == 0);
    int n = 0;
    for (const Json& record : json_lines(run.out)) {
      if (record["workload"]["phase"].get<std::string>().find("nested") == std::string::npos)
        continue;
      const Json& predicted = record["predicted"];
      CHECK(predicted["times_from"] ==
            "measured of small and retrieval alone, and of timed forwards");
      // Short runs on a busy machine: of the same order.
      const double measured = record["spec"]["draft_ms"], draft = predicted["draft_ms"];
      CHECK(draft > measured / 8);
      CHECK(draft < measured * 8);
      ++n;
    }
    CHECK(n >= 2);
  }

  TEST_CASE("prompt lookup within, beside itself alone") {
    const Outcome run =
        bench({"--format", "jsonl", "-s",
               "bench.drafts=[{name: retrieval, kind: self, keys: retrieval, budget: 64, page: 8}, "
               "{name: text, kind: ngram, ngram: 2}, "
               "{name: nested, kind: nested, self: retrieval, small: text}]",
               "-s", "bench.new_tokens=24", "-s", "spec.inner_steps=[3]"});
    CAPTURE(run.err);
    REQUIRE(run.status == 0);
    int n_nested = 0;
    for (const Json& record : json_lines(run.out)) {
      const std::string phase = record["workload"]["phase"];
      if (phase.find("nested") == std::string::npos) continue;
      ++n_nested;
      const Json &spec = record["spec"], &within = spec["within"];
      CHECK(phase == "rounds nested gamma1 2 gamma2 6 rounds 3");
      CHECK(within["verify"] == "match");
      CHECK(spec["verify"] == "block");
      CHECK(within["drafted"] > 0);
      CHECK(within["emitted"] >= spec["drafted"]);
      CHECK(record["predicted"]["speedup"] > 0);
      CHECK(record["workload"]["draft"]["small"] == "text");
    }
    CHECK(n_nested == 1);
  }

  TEST_CASE("what does not go together") {
    const auto refused = [](const std::vector<std::string>& flags, const std::string& says) {
      const Outcome run = bench(flags);
      CAPTURE(run.err);
      CHECK(run.status == 3);
      CHECK(run.out == "");
      CHECK(run.err.find(says) != std::string::npos);
    };
    const std::string self = "{name: retrieval, kind: self, keys: retrieval, budget: 64, page: 8}",
                      small = "{name: small, kind: model, path: tiny-2m, budget: 64}";
    const auto drafts = [](const std::string& list) {
      return std::vector<std::string>{"-s", "bench.drafts=[" + list + "]"};
    };
    refused(drafts(self + ", {name: n, kind: nested, self: retrieval, small: tiny}"),
            "bench.drafts: 'n' is nested: expected a draft of kind model or ngram as small, found "
            "'tiny'");
    refused(drafts(small + ", {name: n, kind: nested, self: small, small: small}"),
            "bench.drafts: 'n' is nested: expected a draft of kind self, without weights, as self, "
            "found 'small' of kind model");
    refused(drafts("{name: copy, kind: self, weights: int8}, " + small +
                   ", {name: n, kind: nested, self: copy, small: small}"),
            "expected a draft of kind self, without weights, as self, found 'copy' of kind self");
    const std::string text = "{name: text, kind: ngram}",
                      by_text = "{name: n, kind: nested, self: retrieval, small: text}";
    refused(drafts(self + ", " + text +
                   ", {name: n, kind: nested, self: retrieval, small: text, tree: some.json}"),
            "bench.drafts: 'n' has a tree, but 'text' is prompt lookup");
    std::vector<std::string> drawn = drafts(self + ", " + text + ", " + by_text);
    drawn.insert(drawn.end(), {"-s", "spec.inner_verify=block"});
    refused(drawn,
            "spec.inner_verify: block needs sampled draft tokens, but 'text' is prompt lookup; "
            "set match or auto");
    refused(drafts("{name: a, kind: auto}"),
            "bench.drafts: 'a' is of kind auto, which only generation supports");
    refused({"-s", "bench.predict=only", "-s", "bench.hardware.card=h200"},
            "bench.drafts: 'nested' is nested, which bench.predict=only does not support; leave "
            "one of them out");
  }
}
