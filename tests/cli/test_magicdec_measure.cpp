#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "cli/probe.h"

using namespace tandem::testing;
using Json = nlohmann::json;

namespace {

/// A few tokens of the embedded models: seconds.
Outcome measure(std::vector<std::string> arguments, const Launch& launch = {}) {
  const std::vector<std::string> small = {
      "-m",
      "tiny-2m",
      "-s",
      "run.context=200",
      "-s",
      "spec.gamma=[1,3]",
      "-s",
      "bench={new_tokens: 12, batches: 2, warm_ups: 0, drafts: [{name: s64, budget: 64}, "
      "{name: lookup, kind: ngram}]}"};
  Launch run = launch;
  run.arguments = small;
  run.arguments.insert(run.arguments.end(), arguments.begin(), arguments.end());
  return run_process(program("magicdec-bench"), run);
}

std::string phase_of(const Json& record) { return record["workload"]["phase"]; }

/// By phase; of one point.
std::map<std::string, Json> by_phase(const std::string& text) {
  std::map<std::string, Json> records;
  for (const Json& record : json_lines(text)) records[phase_of(record)] = record;
  return records;
}

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
    const Outcome run = measure({"-m", "tiny-16m", "-s", "model.compute=f32", "-s",
                                 "bench.drafts=[{name: s64, budget: 64}, {name: all, keys: full}, "
                                 "{name: small, kind: model, path: tiny-2m, budget: 64}, "
                                 "{name: lookup, kind: ngram}]",
                                 "-s", "run.batch=1", "--format", "jsonl"});
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
    CHECK(run.err.find("tokens/step: accepted draft tokens plus one from the target") !=
          std::string::npos);
  }

  TEST_CASE("drawn text: batches of several, pairs of batches give an interval") {
    const Outcome run = measure({"-s", "run.batch=3", "-s", "sampling.temperature=1", "-s",
                                 "bench.predict=no", "--format", "jsonl"});
    CAPTURE(run.err);
    CHECK(run.status == 0);
    const auto records = by_phase(run.out);
    REQUIRE(records.size() == 5);
    const Json& spec = records.at("rounds s64 gamma 3")["spec"];
    check_counts(spec);
    CHECK(spec["sequences"] == 6);
    CHECK(spec["speedup_ci95_low"] <= spec["speedup_measured"]);
    CHECK(spec["speedup_ci95_high"] >= spec["speedup_measured"]);
    CHECK_FALSE(records.at("rounds s64 gamma 3").contains("predicted"));
  }

  TEST_CASE("a draft reads by keys, or by any policy that reads trees") {
    const Outcome run =
        measure({"-s", "run.batch=1", "-s", "spec.gamma=2", "-s", "bench.predict=no", "-s",
                 "bench.drafts=[{name: s64, budget: 64}, {name: same, cache: {kind: streaming, "
                 "recent: 60}}, "
                 "{name: lsh, cache: {kind: lsh, lsh: {bits: 8, tables: 40}}}]",
                 "--format", "jsonl"});
    CAPTURE(run.err);
    CHECK(run.status == 0);
    const auto records = by_phase(run.out);
    const Json &keys = records.at("rounds s64 gamma 2"), &cache = records.at("rounds same gamma 2");
    CHECK(keys["spec"]["accepted_hist"] == cache["spec"]["accepted_hist"]);
    CHECK(cache["workload"]["draft"]["cache"]["recent"] == 60);
    CHECK_FALSE(cache["workload"]["draft"].contains("keys"));
    check_counts(records.at("rounds lsh gamma 2")["spec"]);
    const Outcome bad = measure({"-s", "bench.drafts=[{name: a, cache: {kind: lhs}}]"});
    CHECK(bad.status == 3);
    CHECK(bad.err.find("found 'lhs'") != std::string::npos);
  }

  TEST_CASE(
      "a target that chooses its keys: rounds write its own text, and records name its kind") {
    const Outcome run =
        measure({"-m", "tiny-16m", "-s", "model.compute=f32", "-s", "run.batch=2", "-s",
                 "cache={kind: hybrid, recent: 16, dense_layers: [0]}", "-s",
                 "bench.drafts=[{name: small, kind: model, path: tiny-2m, budget: 64}, "
                 "{name: s64, budget: 64}, {name: lookup, kind: ngram}]",
                 "--format", "jsonl"});
    CAPTURE(run.err);
    CHECK(run.status == 0);
    const auto records = by_phase(run.out);
    CHECK(records.size() == 7);
    for (const auto& [phase, record] : records) {
      CAPTURE(phase);
      CHECK(record["workload"]["cache"] == Json{{"kind", "hybrid"}, {"place", "device"}});
      if (phase != "plain") CHECK(record["spec"]["sequences_as_plain"] == 4);
    }
    const Outcome predicted = measure(
        {"-s", "cache.kind=lsh", "-s", "bench.predict=only", "-s", "bench.hardware.card=h200"});
    CHECK(predicted.status == 3);
    CHECK(predicted.err.find("cache.kind: is lsh, but bench.predict=only needs full; leave it "
                             "full, or leave bench.predict out to measure") != std::string::npos);
  }

  TEST_CASE("auto chooses in every round, next to gammas of a list, and the best is told") {
    const Outcome run = measure(
        {"-s", "run.batch=2", "-s", "spec.gamma=[1, 3, auto]", "-s", "spec.max_gamma=5", "-s",
         "bench.new_tokens=60", "-s",
         "bench.drafts=[{name: s64, budget: 64}, {name: small, kind: model, path: tiny-2m}, "
         "{name: text, kind: ngram}]",
         "--format", "jsonl"});
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
    CHECK(run.err.find("batch 2 at 200 tokens, temperature 0: " + best) != std::string::npos);
    // Prompt lookup has no auto: the most, once.
    const Outcome most_listed =
        measure({"-s", "spec.gamma=[5, auto]", "-s", "spec.max_gamma=5", "--format", "jsonl"});
    CAPTURE(most_listed.err);
    CHECK(most_listed.status == 0);
    CHECK(by_phase(most_listed.out).size() == 4);
    const Outcome bad = measure({"-s", "spec.gamma=[auto, 2, auto]"});
    CHECK(bad.status == 3);
    CHECK(bad.err.find("spec.gamma: names auto twice") != std::string::npos);
  }

  TEST_CASE("random weights: acceptance is simulated by alpha, and said to be") {
    const std::string model =
        "synthetic:" + (tandem::test::source_dir() / "recipes/models/tiny-2m/config.json").string();
    const Outcome run =
        measure({"-m", model, "-s", "run.batch=2", "-s", "bench.random_kv=true", "-s",
                 "bench.drafts=[{name: s64, budget: 64, alpha: .8}, {name: u, budget: 64}]",
                 "--format", "jsonl"});
    CAPTURE(run.err);
    CHECK(run.status == 8);
    const auto records = by_phase(run.out);
    const Json& record = records.at("rounds s64 gamma 3");
    CHECK(record["workload"]["simulated_acceptance"] == true);
    CHECK(record["workload"]["dataset"] == "random keys and values");
    CHECK(record["spec"]["alpha_simulated"] == .8);
    CHECK(record["spec"]["tokens_per_round_expected"].get<double>() == doctest::Approx(2.952));
    CHECK(record.dump().find("accepted tokens are simulated") != std::string::npos);
    check_counts(record["spec"]);
    const Json& failed = records.at("rounds u gamma 3");
    CHECK(failed["status"] == "failed");
    CHECK(failed["error"]["message"].dump().find("is not known") != std::string::npos);
  }

  TEST_CASE("--resume measures what is missing, also after a torn line; none is there twice") {
    const TemporaryFolder folder;
    const std::filesystem::path file = folder / "out.jsonl";
    const auto sweep = [&](const std::string& more) {
      return measure({"--sweep", "run.batch=1,2", "-o", file.string(), more});
    };
    CHECK(sweep("--no-progress").status == 0);
    const std::string whole = file_text(file);
    std::vector<std::pair<std::string, std::string>> all;
    for (const Json& record : json_lines(whole))
      all.emplace_back(record["point"], phase_of(record));
    REQUIRE(all.size() == 10);
    std::filesystem::resize_file(file, whole.size() - 1000);
    const Outcome again = sweep("--resume");
    CAPTURE(again.err);
    CHECK(again.status == 0);
    std::vector<std::pair<std::string, std::string>> now;
    for (const Json& record : json_lines(file_text(file)))
      now.emplace_back(record["point"], phase_of(record));
    CHECK(now == all);
    CHECK(file_text(file).substr(0, whole.size() / 2) == whole.substr(0, whole.size() / 2));
    const std::string before = file_text(file);
    CHECK(sweep("--resume").status == 0);
    CHECK(file_text(file) == before);
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
      const Outcome run = measure({"-s", "run.batch=1", "-s", "run.context=100", "-s",
                                   "spec.gamma=2", "-s", "bench.batches=1", "--sweep", c.sweep,
                                   "-s", "bench.predict=no", "--format", "jsonl"});
      CAPTURE(run.err);
      CHECK(run.status == 0);
      std::vector<double> seen;
      std::set<std::string> points;
      for (const Json& record : json_lines(run.out)) {
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
      const Outcome run =
          run_process(program("magicdec-bench"),
                      {.arguments = {"-r", "magicdec/tiny-16m", "-r", "magicdec/preset-" + preset,
                                     "--print-recipe"}});
      CHECK(run.status == 0);
      CHECK(run.out.find("self-512") != std::string::npos);
      return run.out;
    };
    const std::string program = sizes("80-tokens"), paper = sizes("96-tokens");
    for (const char* line : {"new_tokens: 80 ", "batches: 5 ", "warm_ups: 5 ", "seed: 123 "})
      CHECK(program.find(line) != std::string::npos);
    for (const char* line : {"new_tokens: 96 ", "batches: 20 ", "warm_ups: 1 ", "seed: 0 "})
      CHECK(paper.find(line) != std::string::npos);
  }

  TEST_CASE("shards divide the points, and their records join by concatenation") {
    const TemporaryFolder folder;
    const std::vector<std::string> sweep = {"--sweep", "run.batch=1,2", "-s", "spec.gamma=2"};
    std::set<std::string> points;
    std::string joined;
    for (const char* shard : {"1/2", "2/2"}) {
      std::vector<std::string> words = sweep;
      words.insert(words.end(), {"--shard", shard, "--format", "jsonl"});
      const Outcome run = measure(words);
      CHECK(run.status == 0);
      joined += run.out;
    }
    const auto records = json_lines(joined);
    for (const Json& record : records) points.insert(record["point"]);
    CHECK(points.size() == 2);
    CHECK(records.size() == 6);
    // As the file of a whole sweep, of which nothing is left to measure.
    std::vector<std::string> words = sweep;
    words.insert(words.end(), {"--resume", "-o", folder.write("all.jsonl", joined).string()});
    CHECK(measure(words).status == 0);
    CHECK(file_text(folder / "all.jsonl") == joined);
  }

  TEST_CASE("what fails is recorded, and the rest goes on") {
    const Outcome draft =
        measure({"-s", "run.batch=1", "-s",
                 "bench.drafts=[{name: k, keys: topk, budget: 64, tree: " +
                     (tandem::test::source_dir() / "recipes/sequoia/tree-8.json").string() +
                     "}, {name: s64, budget: 64}]",
                 "--format", "jsonl"});
    CAPTURE(draft.err);
    CHECK(draft.status == 8);
    auto records = by_phase(draft.out);
    CHECK(records.at("rounds k tree 8x6")["status"] == "failed");
    CHECK(records.at("rounds k tree 8x6")["error"]["kind"] == "recipe");
    CHECK(records.at("rounds s64 gamma 1")["status"] == "ok");
    CHECK(
        draft.err.find("the policy of 'k' is topk, which does not support trees of draft tokens") !=
        std::string::npos);

    const Outcome rows = measure({"-s", "run.batch=380", "-s", "run.context=20", "-s",
                                  "spec.gamma=10", "-s", "bench.batches=1", "--format", "jsonl"});
    CAPTURE(rows.err);
    CHECK(rows.status == 8);
    records = by_phase(rows.out);
    CHECK(records.at("plain")["status"] == "ok");
    CHECK(records.at("rounds lookup gamma 10")["status"] == "failed");
    CHECK(rows.err.find("spec.gamma: 10 draft tokens and 1 more for each of 380 sequences exceed "
                        "the 4096 rows of a step") != std::string::npos);

    const Outcome memory = measure({"--sweep", "run.batch=1,800", "-s", "spec.gamma=1", "-s",
                                    "run.host_memory_limit=200MiB", "--format", "jsonl"});
    CAPTURE(memory.err);
    CHECK(memory.status == 8);
    const std::vector<Json> lines = json_lines(memory.out);
    REQUIRE(lines.size() == 4);
    CHECK(lines.back()["status"] == "failed");
    CHECK(lines.back()["error"]["kind"] == "memory");
    CHECK(lines.back()["workload"]["batch"] == 800);
  }

  TEST_CASE("bad settings say what is wrong and what to do") {
    const auto fails = [](std::vector<std::string> with, int status, const std::string& text) {
      const Outcome run = measure(std::move(with));
      CAPTURE(run.err);
      CHECK(run.status == status);
      CHECK(run.err.find(text) != std::string::npos);
    };
    fails({"-s", "run.batch=1", "-s", "spec.gamma=12"}, 3,
          "spec.gamma: is 12 tokens, but a sequence gets only 12 new tokens; lower it, or raise "
          "bench.new_tokens");
    fails({"-s", "run.batch=1", "-s", "bench.budget=4"}, 3,
          "'s64' has a budget of 4 tokens, expected more than the 4 tokens that are always read");
    fails({"-s", "run.batch=1", "-s", "spec.gamma=[2,2]"}, 3, "spec.gamma: names '2' twice");
    fails({"-s", "run.batch=1", "-s", "run.context=16380"}, 3,
          "run.context: is 16380 tokens with 12 new tokens, but tiny-2m supports only 16384");
    fails({"-s", "run.batch=1", "-s", "run.context=16000"}, 4,
          "tokens, but a prompt of run.context needs 15999\n  hint: name a longer text with -s "
          "data.path=FILE, or lower run.context\n");
  }

  TEST_CASE("--dry-run says what fits") {
    const Outcome run = measure({"--sweep", "run.batch=1,2", "--dry-run"});
    CHECK(run.status == 0);
    CHECK(run.out.find("planned peak") != std::string::npos);
    const Outcome large =
        measure({"--sweep", "run.batch=800", "--dry-run", "-s", "run.host_memory_limit=200MiB"});
    CHECK(large.status == 5);
    CHECK(large.out.find("does not fit") != std::string::npos);
  }

  TEST_CASE("sequences of prompts of a file end where the model ends them") {
    const TemporaryFolder folder;
    const auto file = folder.write("prompts.jsonl",
                                   "{\"prompt\": \"Once upon a time\"}\n"
                                   "{\"ids\": [5, 6, 7, 8, 9, 10, 11]}\n");
    const auto bench = [&](const std::string& context, const std::string& batches,
                           const std::vector<std::string>& more = {}) {
      std::vector<std::string> arguments = {"-m",       "tiny-16m",
                                            "-s",       "bench.prompts=" + file.string(),
                                            "-s",       "run.context=" + context,
                                            "-s",       "run.batch=1",
                                            "-s",       "bench.batches=" + batches,
                                            "-s",       "spec.gamma=3",
                                            "--format", "jsonl"};
      arguments.insert(arguments.end(), more.begin(), more.end());
      return measure(arguments);
    };
    const Outcome run = bench("7", "2");
    CAPTURE(run.err);
    CHECK(run.status == 0);
    const auto records = by_phase(run.out);
    REQUIRE(records.size() == 3);
    const Json& lookup = records.at("rounds lookup gamma 3");
    CHECK(lookup["workload"]["dataset"] == "prompts.jsonl");
    CHECK(lookup["workload"]["prompt_tokens"] == 6.5);
    CHECK(lookup["spec"]["sequences_as_plain"] == 2);
    check_counts(lookup["spec"]);
    // The third token that tiny-16m writes is " the".
    const Outcome short_run = bench("7", "1", {"-s", "sampling.stop_ids=[278]"});
    CHECK(by_phase(short_run.out).at("plain")["timing"]["decode_step"]["n"] == 2);
    CHECK(has(bench("7", "3").err, "expected 3 prompts, found 2"));
    CHECK(has(bench("6", "2").err, ":2: expected 2 to 6 tokens (run.context), found 7"));
  }
}
