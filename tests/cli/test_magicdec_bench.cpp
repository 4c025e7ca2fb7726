#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "cli/probe.h"

using namespace tandem::testing;
using Json = nlohmann::json;

namespace {

Outcome magicdec_bench(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"-r", "magicdec/llama3-8b"});
  return run_process(program("magicdec-bench"), {.arguments = std::move(arguments)});
}

/// A machine of the paper: eight A100 at 85 % of their bandwidth and 40 % of their arithmetic.
Outcome on_paper(std::vector<std::string> arguments) {
  const std::vector<std::string> paper = {
      "--predict", "-s",
      "bench.hardware={card: a100-80, gpus: 8, read_share: .85, compute_share: .4}"};
  arguments.insert(arguments.begin(), paper.begin(), paper.end());
  return magicdec_bench(std::move(arguments));
}

}  // namespace

TEST_SUITE("cli/magicdec-bench") {
  TEST_CASE("a prediction is a record that says so") {
    const Outcome run =
        on_paper({"-s", "bench.drafts=[{name: s512, keys: streaming, budget: 512, alpha: .8}]",
                  "--sweep", "run.batch=256", "-s", "spec.gamma=3", "--format", "jsonl"});
    CAPTURE(run.err);
    CHECK(run.status == 0);
    const std::vector<Json> records = json_lines(run.out);
    REQUIRE(records.size() == 1);
    const Json& r = records[0];
    CHECK(r["tool"] == "magicdec-bench");
    CHECK(r["workload"]["phase"] == "predict s512");
    CHECK(r["workload"]["alpha_assumed"] == .8);
    CHECK(r["workload"]["alpha_source"] == "given");
    CHECK(r.dump().find("nothing was measured") != std::string::npos);
    CHECK(run.err.find("nothing was measured") != std::string::npos);
    // The row of the planner's reference values with these settings.
    const Json& p = r["predicted"];
    CHECK(p["plain_step_ms"].get<double>() == doctest::Approx(81.2900383284).epsilon(1e-9));
    CHECK(p["verify_ms"].get<double>() == doctest::Approx(92.8356666854).epsilon(1e-9));
    CHECK(p["draft_step_ms"].get<double>() == doctest::Approx(5.0876067143).epsilon(1e-9));
    CHECK(p["speedup"].get<double>() == doctest::Approx(2.2199033510).epsilon(1e-9));
    CHECK(p["critical_context_tokens"].get<double>() == doctest::Approx(4084.753154).epsilon(1e-9));
    CHECK(p["times_from"] == "roofline");
    CHECK(r["spec"]["speedup_predicted"] == p["speedup"]);
    CHECK_FALSE(r["spec"].contains("alpha"));
    CHECK_FALSE(r.contains("timing"));
  }

  TEST_CASE("a row for each point and draft, plain decoding with the others") {
    const Outcome run = magicdec_bench({"--predict", "--sweep", "run.batch=1,16", "--sweep",
                                        "run.context=8Ki,32Ki", "--format", "csv"});
    CHECK(run.status == 0);
    CHECK(std::ranges::count(run.out, '\n') == 1 + 2 * 2 * 4);
    CHECK(has(run.out, ",run.batch,run.context\n"));
    CHECK(has(run.out, ",alpha,"));
    CHECK(has(run.out, ",0.89,"));
    const Outcome text =
        magicdec_bench({"--predict", "-s", "run.batch=1", "-s", "run.context=8Ki"});
    CHECK(has(text.out, "predicted speed-up"));
    CHECK(has(text.out, "  0.890 given  "));
    CHECK(has(text.out, "\n   8192      1  plain "));
  }

  TEST_CASE("a quantized copy of the target drafts for it") {
    const auto bench = [](const std::string& draft) {
      return run_process(
          program("magicdec-bench"),
          {.arguments = {"-m", "tiny-16m", "--device", "cpu", "-s", "run.context=200", "-s",
                         "bench.new_tokens=32", "-s", "bench.batches=1", "-s", "spec.gamma=3", "-s",
                         "bench.drafts=[" + draft + "]", "--format", "jsonl"}});
    };
    const Outcome run =
        bench("{name: int8, kind: model, path: tiny-16m, weights: int8, keys: full}");
    CAPTURE(run.err);
    const std::vector<Json> records = json_lines(run.out);
    REQUIRE(records.size() == 2);  // with plain decoding
    CHECK(records[1]["workload"]["draft"]["weights"] == "int8");
    const double alpha = records[1]["spec"]["alpha"];
    CHECK(alpha > .9);
    CHECK(alpha < 1);  // a copy that is not quantized agrees with every token
    CHECK_FALSE(records[1].contains("predicted"));

    const std::vector<Json> self =
        json_lines(bench("{name: int8, kind: self, weights: int8, cache: {kind: full}}").out);
    REQUIRE(self.size() == 2);
    CHECK(self[1]["spec"]["alpha"] == alpha);
    CHECK(has(bench("{name: a, kind: ngram, weights: int4}").err,
              "kind ngram has no key 'weights'\n  hint: it needs kind model, self"));
    CHECK(has(magicdec_bench({"--predict", "-s",
                              "bench.drafts=[{name: a, kind: model, path: "
                              "'synthetic:llama-3.1-8b', weights: int4, alpha: .8}]"})
                  .err,
              "'a' has quantized weights, which the roofline does not support"));
  }

  TEST_CASE("gamma is 0 where no chain pays, and the chain is still there to see") {
    const Outcome run =
        magicdec_bench({"--predict", "-s", "bench.drafts=[{name: a, alpha: .3}]", "--sweep",
                        "run.batch=1", "-s", "run.context=2Ki", "--format", "jsonl"});
    const Json p = json_lines(run.out).at(0)["predicted"];
    CHECK(p["gamma"] == 0);
    CHECK(p["speedup"] == 1);
    CHECK(p["chain_gamma"] == 1);
    CHECK(p["chain_speedup"].get<double>() < 1);
  }

  TEST_CASE("a sweep of the budget reaches every draft that has one") {
    const Outcome run = magicdec_bench(
        {"--predict", "-s",
         "bench.drafts=[{name: a, alpha: .8, budget: 300}, {name: f, keys: full}]", "--sweep",
         "run.batch=8", "--sweep", "bench.budget=256,4096", "--format", "jsonl"});
    const std::vector<Json> records = json_lines(run.out);
    REQUIRE(records.size() == 4);
    CHECK(records[0]["predicted"]["most_sequences"] == 28);
    CHECK(records[0]["predicted"]["inflection_tokens"].get<double>() > 0);
    CHECK(records[0]["workload"]["draft"]["budget_tokens"] == 256);
    CHECK(records[2]["workload"]["draft"]["budget_tokens"] == 4096);
    CHECK_FALSE(records[1]["workload"]["draft"].contains("budget_tokens"));
    CHECK(records[0]["predicted"]["draft_step_ms"].get<double>() <
          records[2]["predicted"]["draft_step_ms"].get<double>());
    CHECK(records[1]["workload"]["alpha_assumed"] == 1);
  }

  TEST_CASE("measured times take the place of the roofline") {
    const TemporaryFolder folder;
    const auto bucket = [](int batch, int context, double ms) {
      return Json{{"batch", batch},
                  {"context", context},
                  {"target", {{"tokens", {1, 4}}, {"ms", {ms, ms + .3}}}},
                  {"draft", {{"tokens", {1}}, {"ms", {1}}}}};
    };
    const Json table = {{"format", "sequoia-timing/1"},
                        {"overhead_ms", .2},
                        {"buckets", {bucket(1, 1000, 5), bucket(1, 9000, 6), bucket(16, 1000, 8)}}};
    std::ofstream(folder / "times.json") << table;
    const auto predicted = [&](const std::string& context) {
      const Outcome run = magicdec_bench(
          {"--predict", "-s",
           "bench.drafts=[{name: t, alpha: .9, timing: " + (folder / "times.json").string() + "}]",
           "--sweep", "run.batch=1", "-s", "run.context=" + context, "-s", "spec.gamma=3",
           "--format", "jsonl"});
      CAPTURE(run.err);
      REQUIRE(run.status == 0);
      return json_lines(run.out).at(0)["predicted"];
    };
    const Json inside = predicted("5000");
    CHECK(inside["times_from"] == "interpolated");
    CHECK(inside["plain_step_ms"].get<double>() == doctest::Approx(5.5));
    CHECK(inside["round_ms"].get<double>() == doctest::Approx(3 + 5.8 + .2));
    const Json beyond = predicted("17000");
    CHECK(beyond["times_from"] == "fitted");
    CHECK(beyond["plain_step_ms"].get<double>() == doctest::Approx(7));
  }

  TEST_CASE("an interrupted sweep goes on where it stopped") {
    const TemporaryFolder folder;
    const std::string file = (folder / "out.jsonl").string();
    CHECK(magicdec_bench({"--predict", "--sweep", "run.batch=1", "-o", file}).status == 0);
    CHECK(
        magicdec_bench({"--predict", "--sweep", "run.batch=1,2", "-o", file, "--resume"}).status ==
        0);
    std::ifstream in(file);
    const std::string text(std::istreambuf_iterator<char>(in), {});
    CHECK(std::ranges::count(text, '\n') == 8);
  }

  TEST_CASE("--dry-run says what fits") {
    const Outcome run = magicdec_bench({"--predict", "--dry-run", "--sweep", "run.batch=4"});
    CHECK(run.status == 0);
    CHECK(run.out.find("fits") != std::string::npos);
    const Outcome large = magicdec_bench({"--predict", "--dry-run", "--sweep", "run.batch=128"});
    CHECK(large.status == 5);
    CHECK(large.out.find("does not fit") != std::string::npos);
  }

  TEST_CASE("bad settings say what is wrong and what to do") {
    const auto fails = [](std::vector<std::string> with, int status, const std::string& text) {
      const Outcome run = magicdec_bench(std::move(with));
      CAPTURE(run.err);
      CHECK(run.status == status);
      CHECK(run.err.find(text) != std::string::npos);
    };
    const auto drafts = [](const std::string& list) {
      return std::vector<std::string>{"--predict", "--sweep", "run.batch=1", "-s",
                                      "bench.drafts=[" + list + "]"};
    };
    fails(drafts("{name: a, budget: 4}"), 3,
          "bench.drafts: 'a' has a budget of 4 tokens, expected more than the 4 tokens that are "
          "always read");
    fails({"--predict", "--sweep", "bench.budget=512,20"}, 3,
          "cache.snapkv.budget: 20 tokens hold only the window of 32 and 4 sinks");
    fails(drafts("{name: a, cache: {kind: lsh}, budget: 512}"), 3,
          "'a' has a budget, which cache.kind lsh does not support");
    fails(drafts("{name: a, cache: {kind: snapkv}, window: 8}"), 3,
          "bench.drafts.window is the older name of bench.drafts.cache.recent, and cache is set");
    fails({"--predict", "-s", "bench.drafts=[{name: a, cache: {kind: snapkv}, alpha: .5}]", "-s",
           "bench.budget=128"},
          3, "bench.budget: sets the budget of drafts that have one, but none has; add budget");
    fails(drafts("{name: a, kind: nested, self: b}"), 3,
          "expected a draft of kind self, without weights, as self, found 'b', which is not in");
    fails({"--predict", "-s", "bench.phases=[decode]"}, 3,
          "bench.phases: decode cannot be calculated; set bench.phases=[]");
    fails({"--predict", "--sweep", "bench.predict=only,also"}, 3,
          "bench.predict: only cannot be swept together with other values");
    fails(drafts("{name: a, cache: {kind: lsh}, alpha: .5}"), 3,
          "'a' has cache.kind lsh, whose costs are not known");
    fails(drafts("{name: a, kind: selfish}"), 3,
          "kind: expected one of model, ngram, self, nested, auto, none, found 'selfish'");
    fails(drafts("{name: a, alpha: 1.5}"), 3, "alpha: 1.5 is out of range, expected 0 < x <= 1");
    fails(drafts("{name: a, alpha: 0}"), 3, "alpha: 0 is out of range, expected 0 < x <= 1");
    fails(drafts("{name: a}, {name: a}"), 3, "bench.drafts uses the name 'a' twice");
    fails(drafts("{name: a, kind: model}"), 3, "'a' is of kind model, which needs path");
    fails(drafts("{name: a, kind: ngram}"), 3,
          "bench.drafts: the acceptance rate of 'a' at 32000 tokens is not known\n  hint: set it: "
          "{name: a, alpha: 0.8, ...}\n");
    fails(drafts("{name: a, kind: model, path: none-such, alpha: .5}"), 4, "no such model folder");
    fails(drafts("7"), 3,
          "expected drafts such as {name: snapkv, kind: self, cache: {kind: snapkv}}");
    fails({"--predict", "-s", "spec.gamma=0"}, 3,
          "spec.gamma: expected auto or numbers of at least 1, found '0'");
    fails({"--predict", "-s", "run.context=0"}, 3,
          "run.context: expected at least 1 token, found 0");
    fails({"--predict", "-s", "bench.hardware.card=h300"}, 3,
          "no GPU of the table is called 'h300'");
    fails({"--predict", "-s", "bench.hardware={card: null, read_gbps: 1000}"}, 3,
          "bench.hardware: expected a GPU (h200, a100-80, ...), or read_gbps and bf16_tflops");
  }
}
