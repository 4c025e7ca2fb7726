#include <doctest/doctest.h>

#include <csignal>

#include "cli/kept_limits.h"
#include "cli/probe.h"

using namespace tandem::testing;

namespace {

/// As short as a measurement can be, without one of the machine's limits.
Outcome pig_bench(const Words& more, Launch launch = {}) {
  launch.variables.try_emplace("TANDEM_CACHE_DIR", kept_limits());
  return command(
      "pig-bench -m tiny-2m -s bench.min_runs=2 -s bench.min_time=0s -s bench.new_tokens=4" + more,
      launch);
}

}  // namespace

TEST_SUITE("cli/pig_bench") {
  TEST_CASE("a sweep gives one record a point and phase") {
    const Outcome run = pig_bench(
        "--format jsonl -s run.context=100 --sweep run.batch=1,3 --sweep "
        "cache.kind=full,streaming");
    CHECK(run.status == 0);
    const auto all = json_lines(run.out);
    REQUIRE(all.size() == 8);
    for (size_t i = 0; i < all.size(); ++i) {
      const Json& r = all[i];
      CHECK(r["schema"] == "tandem.result/1");
      CHECK(r["status"] == "ok");
      CHECK(r["workload"]["phase"] == (i % 2 == 0 ? "prefill" : "decode"));
      CHECK(r["workload"]["batch"] == (i < 4 ? 1 : 3));
      CHECK(r["recipe"]["effective"]["cache"]["kind"] == (i / 2 % 2 == 0 ? "full" : "streaming"));
      CHECK(r["point"] == r["recipe"]["sha256"].get<std::string>().substr(0, 12));
      CHECK(r["memory"]["cpu"]["peak"] > 0);
      CHECK(r["memory"]["cpu"]["planned_peak"] > r["memory"]["cpu"]["weights"]);
      CHECK(r["throughput"].contains(i % 2 == 0 ? "prefill_tok_s" : "decode_tok_s"));
      CHECK(r["timing"].contains("load"));
    }
  }

  TEST_CASE("records go to the file, the table to standard output") {
    const TemporaryFolder folder;
    const std::string path = folder / "out.jsonl";
    const Outcome run = pig_bench("-s run.context=64 --phase decode -s bench.random_kv=true -o " +
                                  path + " --format md");
    CHECK(run.status == 0);
    CHECK(run.out.find("| model ") == 0);
    CHECK(has(run.out, "random KV"));
    const auto all = json_lines(file_text(path));
    REQUIRE(all.size() == 1);
    CHECK(all[0]["workload"]["kv"] == "random");
  }

  TEST_CASE("bytes faster than memory is read have no share of it, and the table says why") {
    const TemporaryFolder folder;
    write_limits(folder / "ceilings.json", 1e-3);
    const auto bench = [&](const std::string& format) {
      return pig_bench(
          "-t 1 -s run.context=64 --phase decode -s bench.random_kv=true --format " + format,
          {.variables = {{"TANDEM_CACHE_DIR", folder.path()}}});
    };
    const Outcome text = bench("text");
    REQUIRE(text.status == 0);
    CHECK(has(text.out, "  -  "));
    CHECK(has(text.out, "\n-  faster than memory is read: these bytes come from a cache"));
    CHECK_FALSE(has(bench("csv").out, "faster than memory"));
    const Json record = json_lines(bench("jsonl").out).at(0);
    CHECK(record["roofline"]["from_cache"] == true);
    CHECK_FALSE(record["roofline"].contains("frac_of_copy"));
  }

  TEST_CASE("a failing point is recorded and the sweep goes on") {
    const Outcome run = pig_bench("--phase decode --format jsonl --sweep run.context=1Mi,64");
    CHECK(run.status == 8);
    const auto all = json_lines(run.out);
    REQUIRE(all.size() == 2);
    CHECK(all[0]["status"] == "failed");
    CHECK(all[0]["error"]["kind"] == "recipe");
    CHECK(all[1]["status"] == "ok");
    CHECK(has(run.err, "run.context: is 1048576 tokens plus 4 decoded tokens, but "));
    const Outcome alone = pig_bench("-s run.context=1Mi");
    CHECK(alone.status == 3);
    CHECK(has(alone.out, "failed: run.context"));
    const Outcome memory = pig_bench("-s run.host_memory_limit=4MiB --phase prefill");
    CHECK(memory.status == 5);
  }

  TEST_CASE("an interruption ends a long measurement at the next step and leaves no file behind") {
    const TemporaryFolder folder;
    const std::string path = folder / "out.jsonl";
    // Steps of several milliseconds: samples are capped by number, and a small model would be done
    // before the signal comes.
    const Words bench =
        "-m tiny-16m -s run.context=4096 -s run.batch=16 -s bench.random_kv=true --phase decode "
        "-o " +
        path + " -s bench.min_time=5min";
    for (int i = 0; i < 2; ++i) {  // the first run leaves nothing that the second would refuse
      const Outcome run = pig_bench(bench, {.signal = SIGINT, .signal_at_cpu = 2});
      CHECK(run.status == 130);
      CHECK(has(run.err, "interrupted, finishing the current step"));
      CHECK(run.err.ends_with("pig-bench: error: interrupted\n"));
      CHECK(run.cpu_seconds < 20);  // of five minutes
      CHECK(folder.n_files() == 0);
    }
  }

  TEST_CASE("the installed recipes are valid") {
    for (const std::string name : {"pig/compare", "pig/bench-llama-3.2-1b"}) {
      const Outcome check = command("pig-bench --check -r " + name);
      CHECK(check.status == 0);
      CHECK(check.out + check.err == "");
    }
  }
}
