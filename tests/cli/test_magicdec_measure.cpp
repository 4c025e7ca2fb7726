#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "cli/probe.h"

using namespace tandem::testing;

namespace {

/// A few tokens of the embedded models: seconds.
Outcome measure(const Words& more) {
  return command(
      "magicdec-bench -m tiny-2m -s run.context=200 -s spec.gamma=[1,3] -s 'bench={new_tokens: 12, "
      "batches: 2, warm_ups: 0, drafts: [{name: s64, budget: 64}, {name: lookup, kind: ngram}]}'" +
      more);
}

/// Runs one that fails nowhere.
std::string records_of(const Words& more) {
  const Outcome run = measure(more + "--format jsonl");
  CAPTURE(run.err);
  CHECK(run.status == 0);
  return run.out;
}

std::string phase_of(const Json& record) { return record["workload"]["phase"]; }

/// What must hold of the counts of any rounds.
void check_counts(const Json& spec) {
  const auto hist = spec["accepted_hist"].get<std::vector<int>>();
  const int rounds = spec["rounds"], accepted = spec["accepted"], emitted = spec["emitted"];
  int sum = 0, n = 0;
  for (size_t k = 0; k < hist.size(); ++k) {
    n += hist[k];
    sum += static_cast<int>(k) * hist[k];
  }
  CHECK(n == rounds);
  CHECK(sum == accepted);
  CHECK(emitted == accepted + rounds);
  CHECK(spec["mean_tokens_per_round"].get<double>() == doctest::Approx(double(emitted) / rounds));
  if (spec["tested"] > 0)
    CHECK(spec["alpha"].get<double>() == doctest::Approx(accepted / spec["tested"].get<double>()));
  if (spec["drafted"] > 0)
    CHECK(spec["share_accepted"].get<double>() ==
          doctest::Approx(accepted / spec["drafted"].get<double>()));
  CHECK(spec["tested"] <= spec["drafted"]);
  for (const char* part : {"draft_ms", "target_ms", "verify_ms", "rest_ms"}) {
    CHECK(spec[part].get<double>() >= 0);
    CHECK(spec[part].get<double>() <= spec["round_ms"].get<double>());
  }
}

}  // namespace

TEST_SUITE("cli/magicdec-bench/measure") {
  TEST_CASE("every draft at every gamma, greedy text as plain decoding has it") {
    const Outcome run = measure(
        "-m tiny-16m -s model.compute=f32 -s 'bench.drafts=[{name: s64, budget: 64}, {name: all, "
        "keys: full}, {name: small, kind: model, path: tiny-2m, budget: 64}, {name: lookup, kind: "
        "ngram}]' -s run.batch=1 --format jsonl");
    CAPTURE(run.err);
    CHECK(run.status == 0);
    const auto records = by_phase(run.out);
    REQUIRE(records.size() == 9);
    for (const auto& [phase, record] : records) {
      CAPTURE(phase);
      CHECK(record["status"] == "ok");
      CHECK(record["workload"]["distinct_prompts"] == 2);
      const Json& latency = record["latency"];
      CHECK(latency["tpot_ms_p50"].get<double>() > 0);
      CHECK(latency["ttft_ms"].get<double>() > 0);
      CHECK(latency["e2e_ms"] > latency["ttft_ms"]);
      CHECK(record["throughput"]["end_to_end_tok_s"].get<double>() <
            record["throughput"]["decode_tok_s"].get<double>());
      if (phase == "plain") continue;
      const Json& spec = record["spec"];
      check_counts(spec);
      CHECK(spec["sequences_as_plain"] == 2);
      CHECK(spec["sequences"] == 2);
      // Of one sequence at a time all rounds are of the whole batch: the first token comes from the
      // prefill, and the last round may give more than are kept.
      const int emitted = spec["emitted"], gamma = spec["gamma"];
      CHECK(emitted >= 2 * 11);
      CHECK(emitted <= 2 * (11 + gamma));
      CHECK(record["predicted"]["times_from"] ==
            (gamma == 1 ? "measured at gamma 3" : "measured at gamma 1"));
      CHECK(spec["speedup_predicted"] == record["predicted"]["speedup"]);
    }
    // By parts of the output: the same rounds.
    for (const auto& [phase, record] : records) {
      if (phase == "plain") continue;
      int64_t rounds = 0, accepted = 0, tested = 0;
      double from = -1;
      for (const Json& part : record["spec"]["by_output"]) {
        CHECK(part["from_token"] > from);
        from = part["from_token"];
        rounds += part["rounds"].get<int64_t>();
        accepted += part["accepted"].get<int64_t>();
        tested += part["tested"].get<int64_t>();
      }
      CHECK(from < 12);
      CHECK(rounds == record["spec"]["rounds"]);
      CHECK(accepted == record["spec"]["accepted"]);
      CHECK(tested == record["spec"]["tested"]);
    }
    // A draft that reads all keys agrees with itself.
    CHECK(records.at("rounds all gamma 3")["spec"]["alpha"] == 1);
    CHECK(has(run.err, "tokens/step: accepted draft tokens plus one from the target"));
  }

  TEST_CASE("drawn text: batches of several, pairs of batches give an interval") {
    const auto records =
        by_phase(records_of("-s run.batch=3 -s sampling.temperature=1 -s bench.predict=no"));
    REQUIRE(records.size() == 5);
    const Json& spec = records.at("rounds s64 gamma 3")["spec"];
    check_counts(spec);
    CHECK(spec["sequences"] == 6);
    CHECK(spec["speedup_ci95_low"] <= spec["speedup_measured"]);
    CHECK(spec["speedup_ci95_high"] >= spec["speedup_measured"]);
    CHECK_FALSE(records.at("rounds s64 gamma 3").contains("predicted"));
  }

  TEST_CASE("a draft reads by keys, or by any policy that reads trees") {
    const auto records = by_phase(records_of(
        "-s run.batch=1 -s spec.gamma=2 -s bench.predict=no -s 'bench.drafts=[{name: s64, budget: "
        "64}, {name: same, cache: {kind: streaming, recent: 60}}, {name: lsh, cache: {kind: lsh, "
        "lsh: {bits: 8, tables: 40}}}]'"));
    const Json &keys = records.at("rounds s64 gamma 2"), &cache = records.at("rounds same gamma 2");
    CHECK(keys["spec"]["accepted_hist"] == cache["spec"]["accepted_hist"]);
    CHECK(cache["workload"]["draft"]["cache"]["recent"] == 60);
    CHECK_FALSE(cache["workload"]["draft"].contains("keys"));
    check_counts(records.at("rounds lsh gamma 2")["spec"]);
  }

  TEST_CASE(
      "a target that chooses its keys: rounds write its own text, and records name its kind") {
    const auto records = by_phase(records_of(
        "-m tiny-16m -s model.compute=f32 -s run.batch=2 -s 'cache={kind: hybrid, recent: 16, "
        "dense_layers: [0]}' -s 'bench.drafts=[{name: small, kind: model, path: tiny-2m, budget: "
        "64}, {name: s64, budget: 64}, {name: lookup, kind: ngram}]'"));
    CHECK(records.size() == 7);
    for (const auto& [phase, record] : records) {
      CAPTURE(phase);
      CHECK(record["workload"]["cache"] == Json{{"kind", "hybrid"}, {"place", "device"}});
      if (phase != "plain") CHECK(record["spec"]["sequences_as_plain"] == 4);
    }
  }

  TEST_CASE("auto chooses in every round, next to gammas of a list, and the best is told") {
    const Outcome run = measure(
        "-s run.batch=2 -s 'spec.gamma=[1, 3, auto]' -s spec.max_gamma=5 -s bench.new_tokens=60 -s "
        "'bench.drafts=[{name: s64, budget: 64}, {name: small, kind: model, path: tiny-2m}, {name: "
        "text, kind: ngram}]' --format jsonl");
    CAPTURE(run.err);
    CHECK(run.status == 0);
    const auto records = by_phase(run.out);
    REQUIRE(records.size() == 10);
    std::string best = "plain decoding is the fastest";
    double most = 1;
    for (const char* draft : {"s64", "small", "text"})
      for (const char* gamma : {"1", "3", "auto"}) {
        const bool is_text = std::string_view(draft) == "text";
        const bool chooses = std::string_view(gamma) == "auto" && !is_text;
        const std::string name =
            fmt::format("{} gamma {}", draft, is_text && gamma[0] == 'a' ? "5" : gamma);
        CAPTURE(name);
        const Json& record = records.at("rounds " + name);
        const Json& spec = record["spec"];
        check_counts(spec);
        CHECK((spec["gamma"] == "auto") == chooses);
        CHECK((record["workload"]["gamma"] == "auto") == chooses);
        if (chooses) {
          CHECK(spec["mean_gamma"].get<double>() > 0);
          CHECK(spec["mean_gamma"].get<double>() < 5);
          CHECK(spec["accepted_hist"].size() == 6);
        }
        // Greedy texts are those of plain decoding whatever rounds choose.
        CHECK(spec["sequences_as_plain"] == spec["sequences"]);
        if (const double speedup = spec["speedup_measured"]; speedup > most) {
          most = speedup;
          best = name + " decodes ";
        }
      }
    CHECK(has(run.err, "batch 2 at 200 tokens, temperature 0: " + best));
    // Prompt lookup has no auto: the most, once.
    CHECK(by_phase(records_of("-s 'spec.gamma=[5, auto]' -s spec.max_gamma=5")).size() == 4);
  }

  TEST_CASE("random weights: acceptance is simulated by alpha, and said to be") {
    const std::string model = "synthetic:" + recipe_file("models/tiny-2m/config.json");
    const Outcome run =
        measure("-m " + model +
                " -s run.batch=2 -s bench.random_kv=true -s 'bench.drafts=[{name: s64, budget: 64, "
                "alpha: .8}, {name: u, budget: 64}]' --format jsonl");
    CAPTURE(run.err);
    CHECK(run.status == 8);
    const auto records = by_phase(run.out);
    const Json& record = records.at("rounds s64 gamma 3");
    CHECK(record["workload"]["simulated_acceptance"] == true);
    CHECK(record["workload"]["dataset"] == "random keys and values");
    CHECK(record["spec"]["alpha_simulated"] == .8);
    CHECK(record["spec"]["tokens_per_round_expected"].get<double>() == doctest::Approx(2.952));
    CHECK(has(record.dump(), "accepted tokens are simulated"));
    check_counts(record["spec"]);
    const Json& failed = records.at("rounds u gamma 3");
    CHECK(failed["status"] == "failed");
    CHECK(has(failed["error"]["message"].dump(), "is not known"));
  }

  TEST_CASE("each key of a sweep reaches the measurement") {
    const auto at = [](const Json& record, const char* pointer) {
      return record.at(Json::json_pointer(pointer)).get<double>();
    };
    const struct {
      const char *sweep, *pointer;
      std::vector<double> values;
    } cases[] = {{"run.batch=1,2", "/workload/batch", {1, 2}},
                 {"run.context=100,150", "/workload/context_tokens", {100, 150}},
                 {"spec.gamma=1,2", "/spec/gamma", {1, 2}},
                 {"bench.budget=48,64", "/workload/draft/budget_tokens", {48, 64}},
                 {"sampling.temperature=0,0.6", "/workload/temperature", {0, .6}}};
    for (const auto& c : cases) {
      CAPTURE(c.sweep);
      const std::string out = records_of(
          "-s run.batch=1 -s run.context=100 -s spec.gamma=2 -s bench.batches=1 -s "
          "bench.predict=no --sweep" +
          Words(c.sweep));
      std::vector<double> seen;
      std::set<std::string> points;
      for (const Json& record : json_lines(out)) {
        points.insert(record["point"]);
        const Json& latency = record["latency"];
        CHECK(latency["itl_ms"]["p50"] <= latency["itl_ms"]["p99"]);
        CHECK(latency["tpot_ms_p50"] <= latency["tpot_ms_p99"]);
        if (phase_of(record).starts_with("rounds s64")) seen.push_back(at(record, c.pointer));
      }
      CHECK(points.size() == 2);
      CHECK(seen == c.values);
    }
  }

  TEST_CASE("presets of sizes lie over a recipe") {
    const auto sizes = [](const std::string& preset) {
      const Outcome run = command(
          "magicdec-bench -r magicdec/tiny-16m --print-recipe -r "
          "magicdec/preset-" +
          preset);
      CHECK(run.status == 0);
      CHECK(has(run.out, "self-512"));
      return run.out;
    };
    const std::string program = sizes("80-tokens"), paper = sizes("96-tokens");
    for (const char* line : {"new_tokens: 80 ", "batches: 5 ", "warm_ups: 5 ", "seed: 123 "})
      CHECK(has(program, line));
    for (const char* line : {"new_tokens: 96 ", "batches: 20 ", "warm_ups: 1 ", "seed: 0 "})
      CHECK(has(paper, line));
  }

  TEST_CASE("shards divide the points, and their records join by concatenation") {
    const TemporaryFolder folder;
    const Words sweep = "--sweep run.batch=1,2 -s spec.gamma=2";
    std::set<std::string> points;
    std::string joined;
    for (const char* shard : {"--shard 1/2", "--shard 2/2"}) joined += records_of(sweep + shard);
    const auto records = json_lines(joined);
    for (const Json& record : records) points.insert(record["point"]);
    CHECK(points.size() == 2);
    CHECK(records.size() == 6);
    // As the file of a whole sweep, of which nothing is left to measure.
    CHECK(measure(sweep + Words{"--resume", "-o", folder.write("all.jsonl", joined)}).status == 0);
    CHECK(file_text(folder / "all.jsonl") == joined);
  }

  TEST_CASE("what fails is recorded, and the rest goes on") {
    const Outcome draft =
        measure({"-s", "run.batch=1", "-s",
                 "bench.drafts=[{name: k, keys: topk, budget: 64, tree: " +
                     recipe_file("sequoia/tree-8.json") + "}, {name: s64, budget: 64}]",
                 "--format", "jsonl"});
    CAPTURE(draft.err);
    CHECK(draft.status == 8);
    auto records = by_phase(draft.out);
    CHECK(records.at("rounds k tree 8x6")["status"] == "failed");
    CHECK(records.at("rounds k tree 8x6")["error"]["kind"] == "recipe");
    CHECK(records.at("rounds s64 gamma 1")["status"] == "ok");
    CHECK(
        has(draft.err, "the policy of 'k' is topk, which does not support trees of draft tokens"));

    const Outcome rows = measure(
        "-s run.batch=380 -s run.context=20 -s spec.gamma=10 -s bench.batches=1 --format jsonl");
    CAPTURE(rows.err);
    CHECK(rows.status == 8);
    records = by_phase(rows.out);
    CHECK(records.at("plain")["status"] == "ok");
    CHECK(records.at("rounds lookup gamma 10")["status"] == "failed");
    CHECK(has(rows.err,
              "spec.gamma: 10 draft tokens and 1 more for each of 380 sequences exceed "
              "the 4096 rows of a step"));

    const Outcome memory = measure(
        "--sweep run.batch=1,800 -s spec.gamma=1 -s run.host_memory_limit=200MiB --format jsonl");
    CAPTURE(memory.err);
    CHECK(memory.status == 8);
    const std::vector<Json> lines = json_lines(memory.out);
    REQUIRE(lines.size() == 4);
    CHECK(lines.back()["status"] == "failed");
    CHECK(lines.back()["error"]["kind"] == "memory");
    CHECK(lines.back()["workload"]["batch"] == 800);
  }

  TEST_CASE("sequences of prompts of a file end where the model ends them") {
    const TemporaryFolder folder;
    const std::string file = folder.write("prompts.jsonl",
                                          "{\"prompt\": \"Once upon a time\"}\n"
                                          "{\"ids\": [5, 6, 7, 8, 9, 10, 11]}\n");
    const auto bench = [&](const std::string& context, const std::string& batches) {
      return "-m tiny-16m -s run.batch=1 -s spec.gamma=3 -s bench.prompts=" + file +
             Words{"-s", "run.context=" + context, "-s", "bench.batches=" + batches};
    };
    const auto records = by_phase(records_of(bench("7", "2")));
    REQUIRE(records.size() == 3);
    const Json& lookup = records.at("rounds lookup gamma 3");
    CHECK(lookup["workload"]["dataset"] == "prompts.jsonl");
    CHECK(lookup["workload"]["prompt_tokens"] == 6.5);
    CHECK(lookup["spec"]["sequences_as_plain"] == 2);
    check_counts(lookup["spec"]);
    // The third token that tiny-16m writes is " the".
    CHECK(by_phase(records_of(bench("7", "1") + "-s sampling.stop_ids=[278]"))
              .at("plain")["timing"]["decode_step"]["n"] == 2);
    CHECK(has(measure(bench("7", "3")).err, "expected 3 prompts, found 2"));
    CHECK(has(measure(bench("6", "2")).err, ":2: expected 2 to 6 tokens (run.context), found 7"));
  }
}
