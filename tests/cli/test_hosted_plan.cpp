// What --dry-run says of keys in host memory, on a machine without a GPU: where they lie, who
// attends them, what a step moves and takes.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "cli/probe.h"

using namespace tandem;
using namespace tandem::testing;
using doctest::Approx;
using Json = nlohmann::json;

namespace {

Outcome run_without_gpu(const std::string& tool, std::vector<std::string> arguments) {
  Launch launch{.arguments = std::move(arguments)};
  launch.variables["CUDA_VISIBLE_DEVICES"] = "";
  return run_process(program(tool), launch);
}

/// pig-generate's plan of a recipe of 8B at 96Ki tokens with keys in host memory.
Outcome plan(const std::string& kind, std::vector<std::string> flags = {}) {
  flags.insert(flags.begin(),
               {"-r", "pig/llama3-8b-96k-" + kind, "-s", "cache.place=host", "--dry-run"});
  return run_without_gpu("pig-generate", std::move(flags));
}

Json json_of(const Outcome& run) {
  CHECK(run.status == 0);
  CHECK(run.err == "");
  return Json::parse(run.out);
}

}  // namespace

TEST_SUITE("cli/hosted_plan") {
  TEST_CASE("lsh, without a checkpoint: what it would cost") {
    const Outcome run = plan("lsh");
    CHECK(run.status == 0);
    CHECK(run.err == "");
    CHECK(
        has(run.out,
            "\nkv       30 layers offloaded to host memory: 11.25 GiB of KV, 6.89 GiB of index\n"));
    CHECK(has(run.out, "\nattend   cpu, index in host memory, "));
    CHECK(has(run.out, "\nbytes    per token: "));
    CHECK(has(run.out, " of host memory by the CPU, "));
    CHECK(has(run.out, "\nstep     "));
    CHECK(has(run.out, " tokens/s, 1 sequence at 98"));
    CHECK(
        has(run.out,
            "\nrates    GPU memory 3350 GB/s, link 63 GB/s (data sheet of h100, assumed)\n         "
            "host memory 104 GB/s, rows of 256 bytes 74.9 GB/s, 2.24 G scores/s from key codes "
            "(assumed)\n"));
    CHECK_FALSE(has(run.out, "rates unknown"));
    const Json j = json_of(plan("lsh", {"--format", "jsonl"}));
    const Json& hosted = j["hosted"];
    CHECK(hosted["attend"] == "cpu");
    CHECK(hosted["index"] == "host");
    CHECK(hosted["layers"] == 30);
    CHECK(hosted["batch"] == 1);
    CHECK(hosted["ways"].size() == 1);
    // Where the GPU makes tables of prompts.
    CHECK(has(run.out, " of prefill staging, 32.8 MiB of index\n"));
    CHECK(j["memory"]["cuda:0"]["index"].get<double>() <= 40 * 0x1p20);
    CHECK(hosted["key_bytes"].get<double>() == Approx(12.1e9).epsilon(0.02));
    // A token reads the weights; 1.8 % of the keys for each query head, and tables and norms.
    CHECK(hosted["gpu_bytes_token"].get<double>() == Approx(15.8e9).epsilon(0.02));
    CHECK(hosted["dram_bytes_token"].get<double>() == Approx(1.06e9).epsilon(0.05));
    CHECK(hosted["link_bytes_token"].get<double>() < 1e6);
    CHECK(hosted["step_ms"].get<double>() ==
          Approx(hosted["gpu_ms"].get<double>() + hosted["cpu_ms"].get<double>() +
                 hosted["link_ms"].get<double>() + hosted["turn_ms"].get<double>()));
    CHECK_FALSE(j.contains("decode_ms_at_least"));
  }

  TEST_CASE("eight bits: half the bytes, for the CPU alone") {
    const Outcome run = plan("lsh", {"-s", "cache.host_dtype=int8"});
    CHECK(run.status == 0);
    CHECK(has(run.out,
              "\nkv       30 layers offloaded to host memory in int8: 5.80 GiB of KV, 6.89 GiB of "
              "index\n"));
    const Json wide = json_of(plan("hybrid", {"--format", "jsonl", "-s", "cache.attend=cpu"}));
    const Json j = json_of(plan("hybrid", {"--format", "jsonl", "-s", "cache.host_dtype=int8"}));
    CHECK(j["hosted"]["host_dtype"] == "int8");
    CHECK(j["hosted"]["attend"] == "cpu");
    REQUIRE(j["hosted"]["ways"].size() == 2);
    for (const Json& way : j["hosted"]["ways"]) CHECK(way["attend"] == "cpu");
    CHECK(j["hosted"]["key_bytes"].get<double>() ==
          Approx(wide["hosted"]["key_bytes"].get<double>() * 264 / 512));
    CHECK(j["hosted"]["cpu_ms"].get<double>() < 0.65 * wide["hosted"]["cpu_ms"].get<double>());
    const Outcome refused =
        plan("hybrid", {"-s", "cache.host_dtype=int8", "-s", "cache.attend=gpu"});
    CHECK(refused.status == 3);
    CHECK(has(refused.err, "cache.host_dtype: int8 needs attention on the CPU, found attend gpu"));
  }

  TEST_CASE("without a GPU a run is refused, in eight bits too") {
    const Outcome run =
        run_without_gpu("pig-generate", {"-r", "pig/lsh-tiny-16m", "-s", "cache.place=host", "-s",
                                         "cache.host_dtype=int8", "-p", "Once"});
    CHECK(run.status == 6);
    CHECK(has(run.err, "cache.place"));
  }

  TEST_CASE("the hybrid is attended the fastest way that fits") {
    const Json h200 = json_of(plan("hybrid", {"--format", "jsonl", "-s", "run.plan_for=h200"}));
    CHECK(h200["hosted"]["attend"] == "both");
    CHECK(h200["hosted"]["index"] == "device");
    const double share = h200["hosted"]["cpu_share"].get<double>();
    CHECK(share > 0.3);
    CHECK(share < 0.7);
    CHECK(h200["hosted"]["rates"]["gpu_source"] == "data sheet of h200");
    REQUIRE(h200["hosted"]["ways"].size() == 4);
    for (const Json& way : h200["hosted"]["ways"]) {
      CHECK(way["fits"] == true);
      CHECK(way["step_ms"] >= h200["hosted"]["step_ms"]);
    }
    const std::string text = plan("hybrid", {"-s", "run.plan_for=h200"}).out;
    CHECK(has(text, "\nattend   both (CPU "));
    CHECK(has(text, " % over the link), index in GPU memory, "));
    CHECK(has(text,
              "\nrates    GPU memory 4800 GB/s, link 63 GB/s (data sheet of h200)\n         host "
              "memory "));
  }

  TEST_CASE("what a run does without so that its index has room on the GPU, before it has none") {
    const auto attend = [](const char* limit) {
      const Outcome run =
          plan("hybrid", {"--format", "jsonl", "-s", std::string("run.gpu_memory_limit=") + limit});
      CHECK(run.status == 0);
      return Json::parse(run.out);
    };
    const Json roomy = attend("24GiB");
    CHECK(roomy["hosted"]["index"] == "device");
    CHECK(roomy["memory"]["cuda:0"]["planned_peak"].get<double>() <= 24 * 0x1p30);
    const auto needed = roomy["memory"]["cuda:0"]["planned_peak"].get<size_t>() >> 20;
    CHECK(roomy["memory"]["cpu"].contains("embedding") == false);
    CHECK(roomy["prompt_passes"] == 1);
    // The embedding of 1 GiB, then seven eighths of a residual stream of 1.5.
    const Json small = attend(fmt::format("{}MiB", needed - 256).c_str());
    CHECK(small["hosted"]["index"] == "device");
    CHECK(small["memory"]["cpu"]["embedding"] == size_t{128256} * 4096 * 2);
    CHECK(small["prompt_passes"] == 1);
    const Json smaller = attend(fmt::format("{}MiB", needed - 1900).c_str());
    CHECK(smaller["hosted"]["index"] == "device");
    CHECK(smaller["memory"]["cpu"].contains("embedding"));
    CHECK(smaller["prompt_passes"] == 3);
    const std::string text =
        plan("hybrid", {"-s", fmt::format("run.gpu_memory_limit={}MiB", needed - 1900)}).out;
    CHECK(has(text, "\nto fit   embedding in host memory, layer-wise prefill in 3 passes\n"));
    // Weights, dense layers, one layer of the prompt and an eighth of the stream fit; codes do not.
    const Json narrow = attend(fmt::format("{}MiB", needed - 3000).c_str());
    CHECK(narrow["hosted"]["attend"] == "cpu");
    CHECK(narrow["hosted"]["index"] == "host");
    CHECK(narrow["fits"] == true);
    bool told = false;
    for (const Json& way : narrow["hosted"]["ways"])
      if (way["index"] == "device") told = way["fits"] == false;
    CHECK(told);
  }

  TEST_CASE("cache.attend, cache.index and cache.cpu_share are followed") {
    for (const char* who : {"cpu", "gpu", "both"}) {
      CAPTURE(who);
      const Json j =
          json_of(plan("hybrid", {"--format", "jsonl", "-s", std::string("cache.attend=") + who}));
      CHECK(j["hosted"]["attend"] == who);
      for (const Json& way : j["hosted"]["ways"]) CHECK(way["attend"] == who);
    }
    const Json share = json_of(plan(
        "hybrid", {"--format", "jsonl", "-s", "cache.attend=both", "-s", "cache.cpu_share=0.25"}));
    CHECK(share["hosted"]["cpu_share"] == 0.25);
    const Json index = json_of(plan("hybrid", {"--format", "jsonl", "-s", "cache.index=host"}));
    CHECK(index["hosted"]["attend"] == "cpu");
    CHECK(index["hosted"]["ways"].size() == 1);
    CHECK(index["hosted"]["dram_bytes_step"].get<double>() > 1e9);
    const std::string forced = plan("hybrid", {"-s", "cache.attend=gpu"}).out;
    CHECK(has(forced, "\nattend   gpu, index in GPU memory, "));
    CHECK(has(forced, " per step, the only option in this recipe\n"));
  }

  TEST_CASE("host memory that does not suffice is told, with what helps") {
    const Outcome lsh = plan("lsh", {"-s", "run.host_memory_limit=16GiB"});
    CHECK(lsh.status == 5);
    CHECK(has(lsh.out, "  does not fit\n"));
    CHECK(has(lsh.err, "pig-generate: error: cpu: needs "));
    CHECK(has(lsh.err,
              ", 16.00 GiB available\n  hint: choose cache.kind hybrid, whose index is a sixth of "
              "the size"));
    CHECK(plan("hybrid", {"-s", "run.host_memory_limit=16GiB"}).status == 0);
    const Outcome hybrid = plan("hybrid", {"-s", "run.host_memory_limit=8GiB"});
    CHECK(hybrid.status == 5);
    CHECK(has(hybrid.err, "hint: lower run.context or run.batch, or raise run.host_memory_limit"));
    CHECK(plan("hybrid", {"-s", "run.host_memory_limit=8GiB", "-s", "run.context=32Ki"}).status ==
          0);
  }

  TEST_CASE("without --dry-run there has to be a GPU") {
    for (const char* attend : {"cpu", "gpu", "both", "auto"}) {
      CAPTURE(attend);
      const Outcome run = run_without_gpu(
          "pig-generate", {"-r", "pig/hybrid-tiny-16m", "-s", "cache.place=host", "-s",
                           std::string("cache.attend=") + attend, "-p", "The first"});
      CHECK(run.status == 6);
      CHECK(run.out == "");
      CHECK(has(run.err, "or plan for one with --dry-run\n"));
    }
  }

  TEST_CASE("pig-bench plans them, too") {
    const std::vector<std::string> sweep = {"-m",
                                            "synthetic:llama-3.1-8b",
                                            "--dry-run",
                                            "--phase",
                                            "decode",
                                            "-s",
                                            "run.context=96Ki",
                                            "-s",
                                            "cache.kind=hybrid",
                                            "-s",
                                            "cache.place=host",
                                            "-s",
                                            "cache.dense_layers=[0,16]",
                                            "-s",
                                            "bench.random_kv=true",
                                            "-s",
                                            "run.plan_for=h200",
                                            "--sweep",
                                            "run.batch=1,4",
                                            "--format",
                                            "jsonl"};
    const Outcome run = run_without_gpu("pig-bench", sweep);
    CHECK(run.status == 0);
    const auto lines = json_lines(run.out);
    REQUIRE(lines.size() == 2);
    const Json &one = lines[0]["hosted"], &four = lines[1]["hosted"];
    CHECK(one["batch"] == 1);
    CHECK(four["batch"] == 4);
    CHECK(four["key_bytes"].get<double>() == Approx(4 * one["key_bytes"].get<double>()));
    // Products run while keys are attended.
    CHECK(four["step_ms"].get<double>() < 4 * one["step_ms"].get<double>());
    CHECK(four["tokens_s"].get<double>() > one["tokens_s"].get<double>());
    std::vector<std::string> table(sweep.begin(), sweep.end() - 2);
    CHECK(has(run_without_gpu("pig-bench", table).out, "fits, attend both (CPU "));
  }
}
