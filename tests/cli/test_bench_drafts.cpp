// Benchmarks of drafts by predictions, as trees and nested; what all benchmarks do with files,
// plans and mistakes. They are one body, whose names differ in their phases and their examples.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "cli/kept_limits.h"
#include "cli/probe.h"

using namespace tandem::testing;

namespace {

const Words kLlama = "magicdec-bench -r magicdec/llama3-8b --predict";
const Words kTrees =
    "sequoia-bench -r sequoia/bench-tiny-16m --device cpu -s bench.new_tokens=12 -s "
    "bench.batches=1 "
    "-s run.context=8";
const Words kNested =
    "magicdec-bench -r triforce/bench-tiny-16m --device cpu -s run.context=256 -s "
    "bench.new_tokens=8 -s bench.batches=1";
const Words kDrafts =
    "magicdec-bench -m tiny-2m -s run.context=200 -s spec.gamma=[1,3] -s 'bench={new_tokens: 12, "
    "batches: 2, warm_ups: 0, drafts: [{name: s64, budget: 64}, {name: lookup, kind: ngram}]}'";
const Words kPhases =
    "pig-bench -m tiny-2m -s bench.min_runs=2 -s bench.min_time=0s -s bench.new_tokens=4";

Words drafts(const std::string& list) { return {"-s", "bench.drafts=[" + list + "]"}; }

std::vector<Json> records_of(const Words& line) {
  const Outcome run = command(line + "--format jsonl");
  CAPTURE(run.err);
  REQUIRE(run.status == 0);
  return json_lines(run.out);
}

std::string phase_of(const Json& record) { return record["workload"]["phase"]; }

/// Records of trees; plain decoding comes first.
std::vector<Json> trees_of(const Outcome& run) {
  CAPTURE(run.err);
  CHECK(run.status == 0);
  std::vector<Json> all = json_lines(run.out);
  REQUIRE(all.size() >= 1);
  CHECK(phase_of(all.front()) == "plain");
  CHECK(all.front()["timing"]["decode_step"]["p50"].get<double>() > 0);
  all.erase(all.begin());
  return all;
}

}  // namespace

TEST_SUITE("cli/bench/drafts") {
  TEST_CASE("a prediction is a record that says so") {
    // A machine of the paper: eight A100 at 85 % of their bandwidth and 40 % of their arithmetic.
    const Outcome run = command(
        kLlama +
        "-s 'bench.hardware={card: a100-80, gpus: 8, read_share: .85, compute_share: .4}' --sweep "
        "run.batch=256 -s spec.gamma=3 --format jsonl" +
        drafts("{name: s512, keys: streaming, budget: 512, alpha: .8}"));
    CAPTURE(run.err);
    CHECK(run.status == 0);
    const std::vector<Json> records = json_lines(run.out);
    REQUIRE(records.size() == 1);
    const Json& r = records[0];
    CHECK(r["tool"] == "magicdec-bench");
    CHECK(phase_of(r) == "predict s512");
    CHECK(r["workload"]["alpha_assumed"] == .8);
    CHECK(r["workload"]["alpha_source"] == "given");
    CHECK(has(r.dump(), "nothing was measured"));
    CHECK(has(run.err, "nothing was measured"));
    // The row of the planner's reference values with these settings.
    const Json& p = r["predicted"];
    for (const auto& [key, value] : {std::pair{"plain_step_ms", 81.2900383284},
                                     {"verify_ms", 92.8356666854},
                                     {"draft_step_ms", 5.0876067143},
                                     {"speedup", 2.2199033510},
                                     {"critical_context_tokens", 4084.753154}}) {
      CAPTURE(key);
      CHECK(p[key].get<double>() == doctest::Approx(value).epsilon(1e-9));
    }
    CHECK(p["times_from"] == "roofline");
    CHECK(r["spec"]["speedup_predicted"] == p["speedup"]);
    CHECK_FALSE(r["spec"].contains("alpha"));
    CHECK_FALSE(r.contains("timing"));
  }

  TEST_CASE("a row for each point and draft, plain decoding with the others") {
    const Outcome run =
        command(kLlama + "--sweep run.batch=1,16 --sweep run.context=8Ki,32Ki --format csv");
    CHECK(run.status == 0);
    CHECK(std::ranges::count(run.out, '\n') == 1 + 2 * 2 * 4);
    for (const char* part : {",run.batch,run.context\n", ",alpha,", ",0.89,"})
      CHECK_MESSAGE(has(run.out, part), part);
    const Outcome text = command(kLlama + "-s run.batch=1 -s run.context=8Ki");
    for (const char* part : {"predicted speed-up", "  0.890 given  ", "\n   8192      1  plain "})
      CHECK_MESSAGE(has(text.out, part), part);
  }

  TEST_CASE("a quantized copy of the target drafts for it") {
    const Words bench =
        "magicdec-bench -m tiny-16m --device cpu -s run.context=200 -s bench.new_tokens=32 -s "
        "bench.batches=1 -s spec.gamma=3";
    const auto copy = records_of(
        bench + drafts("{name: int8, kind: model, path: tiny-16m, weights: int8, keys: full}"));
    REQUIRE(copy.size() == 2);  // with plain decoding
    CHECK(copy[1]["workload"]["draft"]["weights"] == "int8");
    const double alpha = copy[1]["spec"]["alpha"];
    CHECK(alpha > .9);
    CHECK(alpha < 1);  // a copy that is not quantized agrees with every token
    CHECK_FALSE(copy[1].contains("predicted"));
    const auto self =
        records_of(bench + drafts("{name: int8, kind: self, weights: int8, cache: {kind: full}}"));
    REQUIRE(self.size() == 2);
    CHECK(self[1]["spec"]["alpha"] == alpha);
  }

  TEST_CASE("gamma is 0 where no chain pays, and the chain is still there to see") {
    const Json p = records_of(kLlama + "--sweep run.batch=1 -s run.context=2Ki" +
                              drafts("{name: a, alpha: .3}"))
                       .at(0)["predicted"];
    CHECK(p["gamma"] == 0);
    CHECK(p["speedup"] == 1);
    CHECK(p["chain_gamma"] == 1);
    CHECK(p["chain_speedup"].get<double>() < 1);
  }

  TEST_CASE("a sweep of the budget reaches every draft that has one") {
    const auto records =
        records_of(kLlama + "--sweep run.batch=8 --sweep bench.budget=256,4096" +
                   drafts("{name: a, alpha: .8, budget: 300}, {name: f, keys: full}"));
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
    const std::string times = folder.write("times.json", table.dump());
    const auto predicted = [&](const std::string& context) {
      return records_of(kLlama + ("--sweep run.batch=1 -s spec.gamma=3 -s run.context=" + context) +
                        drafts("{name: t, alpha: .9, timing: " + times + "}"))
          .at(0)["predicted"];
    };
    const Json inside = predicted("5000"), beyond = predicted("17000");
    CHECK(inside["times_from"] == "interpolated");
    CHECK(inside["plain_step_ms"].get<double>() == doctest::Approx(5.5));
    CHECK(inside["round_ms"].get<double>() == doctest::Approx(3 + 5.8 + .2));
    CHECK(beyond["times_from"] == "fitted");
    CHECK(beyond["plain_step_ms"].get<double>() == doctest::Approx(7));
  }

  TEST_CASE("a record for each tree of the grid, measured next to predicted") {
    const auto all =
        trees_of(command(kTrees + "-s tree.sizes=[4,8] -s tree.levels=[3] --format jsonl"));
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
    CHECK(phase_of(all[0]) == "rounds tiny-2m tree 4x3");
    CHECK(all[0]["spec"]["tree"]["size"] == 4);
    CHECK(all[1]["spec"]["tree"]["size"] == 8);
    CHECK(all[0]["spec"]["tree"]["sha256"] != all[1]["spec"]["tree"]["sha256"]);
  }

  TEST_CASE("simulated acceptance is named wherever the figure is") {
    const Outcome run = command(kTrees +
                                "-s tree.sizes=[4] -s tree.levels=[3] -s bench.simulate=true -s "
                                "bench.predict=no --format jsonl");
    const Json r = trees_of(run).at(0);
    CHECK(r["workload"]["simulated_acceptance"] == true);
    CHECK(has(r["workload"]["vector"]["file"], "accept-reference.json"));
    CHECK(r["workload"]["vector"]["sha256"].get<std::string>().size() == 64);
    CHECK(has(r.dump(), "accepted tokens are simulated"));
    CHECK(has(run.err, "accepted tokens are simulated"));
    CHECK_FALSE(r.contains("predicted"));
    // Simulated paths scatter about what the vector makes of the tree, which a token's time is of.
    const Json& spec = r["spec"];
    CHECK(spec["ms_per_token"].get<double>() ==
          doctest::Approx(spec["round_ms"].get<double>() /
                          spec["tokens_per_round_expected"].get<double>()));
  }

  TEST_CASE("trees of a file, and chains, next to each other: all greedy text is the same") {
    const std::string tree = recipe_file("sequoia/tree-8.json");
    const auto all = trees_of(
        command(kTrees + "-s model.compute=f32 -s bench.predict=no -s spec.gamma=2 --format jsonl" +
                drafts("{name: pair, kind: model, path: tiny-2m, keys: full, tree: " + tree +
                       "}, {name: self, keys: full, tree: " + tree +
                       "}, {name: chain, kind: model, path: tiny-2m, keys: full}")));
    REQUIRE(all.size() == 3);
    for (const Json& r : all) CHECK(r["spec"]["sequences_as_plain"] == 1);
    CHECK(all[0]["workload"]["draft"]["tree"] == "tree-8.json");
    CHECK(all[0]["spec"]["tree"]["size"] == 8);
    CHECK(all[2]["spec"]["gamma"] == 2);
  }

  TEST_CASE("a tree that no bound of levels allows is told, the others are measured") {
    const Outcome run = command(kTrees +
                                "-s tree.sizes=[4,64] -s tree.levels=[3] -s tree.max_branch=2 -s "
                                "bench.predict=no --format jsonl");
    CHECK(trees_of(run).size() == 1);
    CHECK(has(run.err, "no tree of 64 nodes on at most 3 levels"));
  }

  TEST_CASE("nested drafts are measured beside both that they are made of") {
    std::set<std::string> names;
    for (const Json& record : records_of(kNested)) {
      const std::string phase = phase_of(record);
      for (const char* name : {"plain", "small", "retrieval", "nested"})
        if (has(phase, name)) names.insert(name);
      if (!has(phase, "nested")) continue;
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
    const std::string pair = "kind: nested, self: retrieval, small: small, tree: auto}";
    int n = 0;
    for (const Json& record :
         records_of(kNested + "-s tree.sizes=[5] -s tree.levels=[3]" +
                    ("-s accept.path=" + recipe_file("sequoia/accept-geometric.json")) +
                    drafts("{name: small, kind: model, path: tiny-2m, budget: 64}, {name: "
                           "retrieval, keys: retrieval, budget: 64, page: 8}, {name: nested, " +
                           pair + ", {name: nested again, " + pair))) {
      if (!has(phase_of(record), "nested")) continue;
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
    int n_nested = 0;
    for (const Json& record : records_of(
             kNested + "-s bench.new_tokens=24 -s spec.inner_steps=[3]" +
             drafts("{name: retrieval, kind: self, keys: retrieval, budget: 64, page: 8}, {name: "
                    "text, kind: ngram, ngram: 2}, {name: nested, kind: nested, self: retrieval, "
                    "small: text}"))) {
      if (!has(phase_of(record), "nested")) continue;
      ++n_nested;
      const Json &spec = record["spec"], &within = spec["within"];
      CHECK(phase_of(record) == "rounds nested gamma1 2 gamma2 6 rounds 3");
      CHECK(within["verify"] == "match");
      CHECK(spec["verify"] == "block");
      CHECK(within["drafted"] > 0);
      CHECK(within["emitted"] >= spec["drafted"]);
      CHECK(record["predicted"]["speedup"] > 0);
      CHECK(record["workload"]["draft"]["small"] == "text");
    }
    CHECK(n_nested == 1);
  }

  TEST_CASE("--resume measures what is missing, also after a torn line; none is there twice") {
    const TemporaryFolder folder;
    const std::string file = folder / "out.jsonl";
    const Launch quick{.variables = {{"TANDEM_CACHE_DIR", kept_limits()}}};
    for (const Words& line : {kPhases + "-s run.context=32 --phase decode", kDrafts, kLlama}) {
      CAPTURE(line.at(0));
      CAPTURE(line.at(2));
      const auto sweep = [&](const std::string& batches, const Words& more) {
        const Outcome run =
            command(line + Words{"--sweep", "run.batch=" + batches, "-o", file} + more, quick);
        CAPTURE(run.err);
        CHECK(run.status == 0);
        std::vector<std::pair<std::string, std::string>> points;
        for (const Json& record : json_lines(file_text(file)))
          points.emplace_back(record["point"], phase_of(record));
        return points;
      };
      const auto all = sweep("1,2", "--overwrite");
      CHECK(all.size() >= 2);
      const std::string whole = file_text(file);
      std::filesystem::resize_file(file, whole.size() - 100);
      CHECK(sweep("1,2", "--resume") == all);
      const std::string again = file_text(file);
      const size_t kept = whole.rfind('\n', whole.size() - 2) + 1;
      CHECK(again.substr(0, kept) == whole.substr(0, kept));
      CHECK(sweep("1,2", "--resume") == all);
      CHECK(file_text(file) == again);
      std::ofstream(file, std::ios::app) << "{\"torn";
      const auto more = sweep("1,2,3", "--resume");
      CHECK(file_text(file).starts_with(again));
      CHECK(more.size() == all.size() / 2 * 3);
      CHECK(json_lines(file_text(file)).back()["workload"]["batch"] == 3);
      CHECK(std::set(more.begin(), more.end()).size() == more.size());
    }
    // Files that no benchmark has written are left alone.
    CHECK(command(kPhases + "--resume").status == 2);
    for (const auto& [text, says] :
         {std::pair{"{\"tool\": \"kernel-bench\", \"status\": \"ok\"}\n", "kernel-bench"},
          {"my only notes, one line, no line break", "does not begin a record"}}) {
      const std::string other = folder.write("other", text);
      const Outcome run = command(kPhases + ("--resume -o " + other));
      CHECK(run.status == 4);
      CHECK_MESSAGE(has(run.err, says), run.err);
      CHECK(file_text(other) == text);
    }
  }

  TEST_CASE("--dry-run says of each point whether it fits") {
    const struct {
      Words line;
      int status;
      std::string says;
    } plans[] = {
        {kLlama + "--sweep run.batch=4", 0, "fits"},
        {kLlama + "--sweep run.batch=128", 5, "does not fit"},
        {kDrafts + "--sweep run.batch=1,2", 0, "planned peak"},
        {kDrafts + "--sweep run.batch=800 -s run.host_memory_limit=200MiB", 5, "does not fit"},
        {kTrees, 0, "planned peak"},
        {kTrees, 0, "tiny-2m weights"},
    };
    for (const auto& [line, status, says] : plans) {
      CAPTURE(says);
      const Outcome run = command(line + "--dry-run");
      CHECK(run.status == status);
      CHECK(has(run.out, says));
    }
    const Outcome run = command(
        "pig-bench -m synthetic:llama-3.2-1b --dry-run -s run.host_memory_limit=16GiB --sweep "
        "run.batch=1,1000 -s run.context=64Ki --phase decode --phase linear");
    CHECK(run.status == 5);
    std::istringstream lines(run.out);
    std::vector<std::string> table;
    for (std::string line; std::getline(lines, line);) table.push_back(line);
    REQUIRE(table.size() == 5);
    CHECK(table[1].ends_with(" fits"));
    CHECK(table[2].ends_with(" fits"));
    CHECK(table[3].ends_with(" does not fit"));
    CHECK(run.cpu_seconds < 2);
  }

  TEST_CASE("bad settings say what is wrong and what to do") {
    const auto draft = [](const std::string& list) { return "--sweep run.batch=1" + drafts(list); };
    check_refusals(
        kLlama,
        {{draft("{name: a, budget: 4}"), 3,
          "bench.drafts: 'a' has a budget of 4 tokens, expected more than the 4 tokens that are "
          "always read"},
         {"--sweep bench.budget=512,20", 3,
          "cache.snapkv.budget: 20 tokens hold only the window of 32 and 4 sinks"},
         {draft("{name: a, cache: {kind: lsh}, budget: 512}"), 3,
          "'a' has a budget, which cache.kind lsh does not support"},
         {draft("{name: a, cache: {kind: snapkv}, window: 8}"), 3,
          "bench.drafts.window is the older name of bench.drafts.cache.recent, and cache is set"},
         {"-s bench.budget=128" + drafts("{name: a, cache: {kind: snapkv}, alpha: .5}"), 3,
          "bench.budget: sets the budget of drafts that have one, but none has; add budget"},
         {"-s bench.phases=[decode]", 3,
          "bench.phases: decode cannot be calculated; set bench.phases=[]"},
         {"--sweep bench.predict=only,also", 3,
          "bench.predict: only cannot be swept together with other values"},
         {draft("{name: a, kind: selfish}"), 3,
          "kind: expected one of model, ngram, self, nested, auto, none, found 'selfish'"},
         {draft("{name: a, alpha: 1.5}"), 3, "alpha: 1.5 is out of range, expected 0 < x <= 1"},
         {draft("{name: a, alpha: 0}"), 3, "alpha: 0 is out of range, expected 0 < x <= 1"},
         {draft("{name: a}, {name: a}"), 3, "bench.drafts uses the name 'a' twice"},
         {draft("{name: a, kind: model}"), 3, "'a' is of kind model, which needs path"},
         {draft("{name: a, kind: ngram, weights: int4}"), 3,
          "kind ngram has no key 'weights'\n  hint: it needs kind model, self"},
         {draft("{name: a, kind: ngram, tree: auto}"), 3,
          "kind ngram has no key 'tree'\n  hint: it needs kind model, self, nested"},
         {draft("7"), 3,
          "expected drafts such as {name: snapkv, kind: self, cache: {kind: snapkv}}"},
         {"-s spec.gamma=0", 3, "spec.gamma: expected auto or numbers of at least 1, found '0'"},
         {"-s run.context=0", 3, "run.context: expected at least 1 token, found 0"},
         {"-s bench.hardware.card=h300", 3, "no GPU of the table is called 'h300'"},
         {"-s 'bench.hardware={card: null, read_gbps: 1000}'", 3,
          "bench.hardware: expected a GPU (h200, a100-80, ...), or read_gbps and bf16_tflops"}});
    const Words only = "-s bench.predict=only -s bench.hardware.card=h200", one = "-s run.batch=1";
    check_refusals(
        kDrafts,
        {{one + "-s spec.gamma=12", 3,
          "spec.gamma: is 12 tokens, but a sequence gets only 12 new tokens; lower it, or raise "
          "bench.new_tokens"},
         {one + "-s bench.budget=4", 3,
          "'s64' has a budget of 4 tokens, expected more than the 4 tokens that are always read"},
         {one + "-s spec.gamma=[2,2]", 3, "spec.gamma: names '2' twice"},
         {"-s 'spec.gamma=[auto, 2, auto]'", 3, "spec.gamma: names auto twice"},
         {drafts("{name: a, cache: {kind: lhs}}"), 3, "found 'lhs'"},
         {only + "-s cache.kind=lsh", 3,
          "cache.kind: is lsh, but bench.predict=only needs full; leave it full, or leave "
          "bench.predict out to measure"}});
    check_refusals(
        kTrees, {{"-s accept.path=\"\"", 3,
                  "accept.path: expected an acceptance vector to choose the trees of 'tiny-2m' by"},
                 // Keys of before drafts had names.
                 {"-s draft.path=tiny-2m", 3,
                  "unknown key 'draft'\n  hint: it was renamed to bench.drafts"},
                 {"-s bench.texts=1", 3, "hint: it was renamed to bench.batches"},
                 {"-s bench.predict=false", 3, "expected one of no, also, only, found 'false'"}});
    const std::string self =
                          "{name: retrieval, kind: self, keys: retrieval, budget: 64, page: 8}, ",
                      small = "{name: small, kind: model, path: tiny-2m, budget: 64}, ",
                      text = "{name: text, kind: ngram}, ";
    check_refusals(
        kNested,
        {{drafts(self + "{name: n, kind: nested, self: retrieval, small: tiny}"), 3,
          "bench.drafts: 'n' is nested: expected a draft of kind model or ngram as small, found "
          "'tiny'"},
         {drafts(small + "{name: n, kind: nested, self: small, small: small}"), 3,
          "bench.drafts: 'n' is nested: expected a draft of kind self, without weights, as self, "
          "found 'small' of kind model"},
         {drafts("{name: copy, kind: self, weights: int8}, " + small +
                 "{name: n, kind: nested, self: copy, small: small}"),
          3, "expected a draft of kind self, without weights, as self, found 'copy' of kind self"},
         {drafts(self + text +
                 "{name: n, kind: nested, self: retrieval, small: text, tree: some.json}"),
          3, "bench.drafts: 'n' has a tree, but 'text' is prompt lookup"},
         {"-s spec.inner_verify=block" +
              drafts(self + text + "{name: n, kind: nested, self: retrieval, small: text}"),
          3,
          "spec.inner_verify: block needs sampled draft tokens, but 'text' is prompt lookup; set "
          "match or auto"},
         {drafts("{name: a, kind: auto}"), 3,
          "bench.drafts: 'a' is of kind auto, which only generation supports"},
         {only, 3,
          "bench.drafts: 'nested' is nested, which bench.predict=only does not support; leave one "
          "of them out"}});
    check_refusals(kPhases, {{"--phase decode --phase decode", 3, "'decode' is listed twice"},
                             {"--phase decoding", 3, "bench.phases"},
                             {"--phase prefill -s bench.random_kv=true", 3, "bench.random_kv"}});
    // A point's own refusal also stands in its row of the table.
    for (const auto& [line, status, says] : std::vector<Refusal>{
             {kLlama + draft("{name: a, kind: nested, self: b}"), 3,
              "expected a draft of kind self, without weights, as self, found 'b', which is not "
              "in"},
             {kLlama + draft("{name: a, cache: {kind: lsh}, alpha: .5}"), 3,
              "'a' has cache.kind lsh, whose costs are not known"},
             {kLlama + draft("{name: a, kind: model, path: 'synthetic:llama-3.1-8b', weights: "
                             "int4, alpha: .8}"),
              3, "'a' has quantized weights, which the roofline does not support"},
             {kLlama + draft("{name: a, kind: ngram}"), 3,
              "bench.drafts: the acceptance rate of 'a' at 32000 tokens is not known\n  hint: set "
              "it: "
              "{name: a, alpha: 0.8, ...}\n"},
             {kLlama + draft("{name: a, kind: model, path: none-such, alpha: .5}"), 4,
              "no such model folder"},
             {kDrafts + one + "-s run.context=16380", 3,
              "run.context: is 16380 tokens with 12 new tokens, but tiny-2m supports only 16384"},
             {kDrafts + one + "-s run.context=16000", 4,
              "tokens, but a prompt of run.context needs 15999\n  hint: name a longer text with -s "
              "data.path=FILE, or lower run.context\n"},
             {kTrees + only, 3,
              "'tiny-2m' proposes trees, which need measured times for a prediction"},
             {kTrees + drafts("{name: p, kind: model, path: tiny-2m, tree: none-such.json}"), 8,
              "none-such.json"},
             {kTrees + "-s tree.sizes=[1024] -s run.batch=5 -s bench.predict=no", 8,
              "tree.sizes: 1024 nodes for each of 5 sequences exceed the 4096 rows of a step"}}) {
      CAPTURE(says);
      const Outcome run = command(line);
      CAPTURE(run.err);
      CHECK(run.status == status);
      CHECK(has(run.err, says));
    }
  }
}
