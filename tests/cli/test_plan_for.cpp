// Plans for GPUs that are not there. CUDA_VISIBLE_DEVICES hides those that are: the same text on
// every machine and in every build.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "base/gpu_cards.h"
#include "cli/probe.h"

using namespace tandem;
using namespace tandem::testing;
using Json = nlohmann::json;

namespace {

constexpr size_t kGiB = size_t{1} << 30;
/// What plans have for the driver and the program's own context, which take a GiB at most.
constexpr size_t kDriver = size_t{548} << 20;

Outcome run_without_gpu(const std::string& tool, std::vector<std::string> arguments) {
  Launch launch{.arguments = std::move(arguments)};
  launch.variables["CUDA_VISIBLE_DEVICES"] = "";
  return run_process(tool, launch);
}

/// pig-generate's plan of a model on an otherwise default recipe.
Outcome plan(std::vector<std::string> arguments,
             const std::string& model = "synthetic:llama-3.1-8b") {
  arguments.insert(arguments.begin(), {"-m", model, "--dry-run", "-s", "run.context=8192"});
  return run_without_gpu(program("pig-generate"), std::move(arguments));
}

}  // namespace

TEST_SUITE("cli/plan_for") {
  TEST_CASE("weights and KV cache have the type of model.compute; others are refused") {
    const auto run = [](const std::vector<std::string>& settings) {
      std::vector<std::string> arguments = {"-p", "Once", "-n", "4"};
      for (const std::string& setting : settings)
        arguments.insert(arguments.end(), {"-s", setting});
      return plan(std::move(arguments), "tiny-2m");
    };
    const std::string all = "  f32 weights and KV cache  ";
    CHECK(has(run({"model.compute=f32"}).out, all));
    CHECK(has(run({"model.compute=f32", "model.weights=f32", "cache.dtype=f32"}).out, all));
    CHECK(has(run({}).out, "  bf16 weights  "));
    const Outcome weights = run({"model.weights=f32"}), keys = run({"cache.dtype=f32"});
    CHECK(weights.status == 3);
    CHECK(has(weights.err, "model.weights: no product multiplies f32 weights by bf16 inputs"));
    CHECK(keys.status == 3);
    CHECK(has(keys.err, "cache.dtype: is f32, but attention reads only keys of the queries' type"));
  }

  TEST_CASE("a plan counts what layers with windows keep") {
    const std::string shape =
        "synthetic:" +
        (test::source_dir() / "tests/data/models/qwen2-layer-types/config.json").string();
    const auto kv = [&](const std::vector<std::string>& more) {
      std::vector<std::string> arguments = {"-s", "run.prefill_chunk=128", "--format", "jsonl"};
      arguments.insert(arguments.end(), more.begin(), more.end());
      return json_lines(plan(arguments, shape).out).at(0);
    };
    // Layers keep 8,192 tokens, or a window of 24 tokens and 128 rows.
    constexpr size_t kPage = size_t{64} * 2 * 2 * 10 * 2, kMoves = size_t{128} * 2 * 4;
    const Json with = kv({}), f32 = kv({"-s", "model.compute=f32"});
    CHECK(with["windowed_kv"] == Json{{"layers", 3},
                                      {"window", 24},
                                      {"bytes", 3 * 5 * kPage + kMoves},
                                      {"bytes_without_windows", 3 * 128 * kPage}});
    CHECK(with["memory"]["cpu"]["kv"] == (2 * 128 + 3 * 5) * kPage + 2 * kMoves);
    CHECK(f32["windowed_kv"]["bytes"] == 2 * 3 * 5 * kPage + kMoves);
    CHECK(has(plan({"-s", "run.prefill_chunk=128"}, shape).out,
              "\nwindows  3 of 5 layers keep 24 tokens of a sequence: 76.0 KiB of KV instead of "
              "1.9 MiB\n"));
    CHECK_FALSE(has(plan({}).out, "\nwindows "));
  }

  TEST_CASE("the recipe of a 70B model on 22 GiB of a GPU is planned where there is no GPU") {
    const Outcome run = run_without_gpu(program("sequoia-generate"),
                                        {"-r", "sequoia/llama3-70b-offload", "--dry-run"});
    CHECK(run.status == 0);
    CHECK(run.err == "");
    CHECK(has(run.out,
              "\ndevice   cuda:0  any GPU  22.00 GiB available (not this machine, run.plan_for can "
              "name a card)\n"));
    CHECK(has(run.out, "\nmemory   cuda:0  process "));
    CHECK(has(run.out, "  fits\n"));
    CHECK(has(run.out, " layers in host memory, "));
    CHECK(has(run.out, " copied to cuda:0 in every forward\n"));
    // With the link's rate it tells the time of a forward, too.
    const Outcome named = run_without_gpu(
        program("sequoia-generate"),
        {"-r", "sequoia/llama3-70b-offload", "--dry-run", "-s", "run.plan_for=rtx-4090"});
    CHECK(named.status == 0);
    CHECK(has(named.out,
              "\ndevice   cuda:0  NVIDIA GeForce RTX 4090  22.00 GiB available (not this machine, "
              "run.plan_for: rtx-4090)\n"));
    CHECK(has(named.out, " s at 31.5 GB/s\n"));
  }

  TEST_CASE("keys in host memory are planned for a GPU, and are an error where there is none") {
    const Outcome planned =
        run_without_gpu(program("pig-generate"),
                        {"-r", "pig/llama3-8b-96k-lsh", "-s", "cache.place=host", "--dry-run"});
    CHECK(planned.status == 0);
    CHECK(planned.err == "");
    CHECK(has(planned.out, "\ndevice   cuda:0  any GPU"));
    const Outcome run =
        run_without_gpu(program("pig-generate"),
                        {"-r", "pig/lsh-tiny-16m", "-s", "cache.place=host", "-p", "The first"});
    CHECK(run.status == 6);
    CHECK(run.out == "");
    CHECK(has(run.err,
              "cache.place: is host, which needs a GPU, but this run is on the CPU\n  hint: leave "
              "it device, choose a GPU with --device cuda, or plan for one with --dry-run\n"));
    const Outcome rounds = run_without_gpu(
        program("sequoia-generate"), {"-r", "sequoia/llama3-70b-offload", "--dry-run", "-s",
                                      "draft.cache.place=host", "-s", "draft.cache.kind=lsh"});
    CHECK(rounds.status == 3);
    CHECK(has(rounds.err,
              "draft.cache.place: host is not supported, only the target's KV cache can be "
              "offloaded (cache.place): leave it out\n"));
  }

  TEST_CASE("speculation over keys in host memory is planned for a GPU, and needs one") {
    const std::vector<std::string> hosted = {"-s", "cache.kind=hybrid", "-s", "cache.place=host"};
    for (const std::string tool : {"sequoia-generate", "spec-check"}) {
      CAPTURE(tool);
      std::vector<std::string> flags = {"-r", "sequoia/tiny-16m", "-p", "The keeper"};
      flags.insert(flags.end(), hosted.begin(), hosted.end());
      const Outcome run = run_without_gpu(program(tool), flags);
      CHECK(run.status == 6);
      CHECK(run.out == "");
      CHECK(has(run.err, "cache.place: is host, which needs a GPU, but this run is on the CPU"));
      flags.push_back("--dry-run");
      const Outcome planned = run_without_gpu(program(tool), flags);
      CHECK(planned.status == 0);
      CHECK(has(planned.out, "\ncache    hybrid, offloaded to host memory for long contexts\n"));
      CHECK(has(planned.out, "\ndevice   cuda:0  any GPU"));
      flags.insert(flags.end(), {"-s", "draft.path=", "-s", "spec.draft=self"});
      const Outcome self = run_without_gpu(program(tool), flags);
      CHECK(self.status == 3);
      CHECK(
          has(self.err,
              "cache.place: is host, which is not supported with 2 policies over one KV cache\n  "
              "hint: set it to device, set spec.draft.path to a separate model, or use cache.kind "
              "full with spec.draft.cache.kind retrieval\n"));
      flags.insert(flags.end(), {"-s", "cache.kind=full", "-s", "cache.attend=gpu", "-s",
                                 "draft.cache.kind=retrieval"});
      const Outcome chunks = run_without_gpu(program(tool), flags);
      CHECK(chunks.status == 0);
      CHECK(has(chunks.out,
                "\ncache    full, offloaded to host memory for long contexts\ndraft    self, "
                "retrieval\n"));
      for (const std::string kind : {"hybrid", "quest", "lsh"}) {
        std::vector<std::string> other = flags;
        other.insert(other.end(), {"-s", "draft.cache.kind=" + kind, "-s", "run.plan_for=h200"});
        const Outcome refused = run_without_gpu(program(tool), other);
        CHECK(refused.status == 3);
        CHECK(has(refused.err, "draft.cache.kind: is " + kind +
                                   ", which does not support a KV cache that the target keeps in "
                                   "host memory\n  hint: choose retrieval, set cache.place to "
                                   "device, or set spec.draft.path to a separate model\n"));
      }
      flags.insert(flags.end(), {"-s", "cache.resident_layers=100"});
      const Outcome beyond = run_without_gpu(program(tool), flags);
      CHECK(beyond.status == 3);
      CHECK(has(beyond.err, "cache.resident_layers: is 100, but"));
    }
    const std::string drafts = "bench.drafts=[{name: small, kind: model, path: tiny-2m}]";
    std::vector<std::string> bench = {"-r", "magicdec/tiny-16m", "--dry-run", "-s", drafts};
    bench.insert(bench.end(), hosted.begin(), hosted.end());
    CHECK(run_without_gpu(program("magicdec-bench"), bench).status == 0);
    bench.insert(bench.end(),
                 {"-s", "cache.kind=full", "-s", "cache.attend=gpu", "-s",
                  "bench.drafts=[{name: chunks, kind: self, cache: {kind: retrieval}}]"});
    CHECK(run_without_gpu(program("magicdec-bench"), bench).status == 0);
    bench.back() =
        "bench.drafts=[{name: small, kind: model, path: tiny-2m, "
        "cache: {kind: lsh, place: host}}]";
    const Outcome of_draft = run_without_gpu(program("magicdec-bench"), bench);
    CHECK(of_draft.status == 3);
    CHECK(has(of_draft.err,
              "bench.drafts.cache.place: host is not supported, only the target's KV cache can be "
              "offloaded (cache.place): leave it out"));
  }

  TEST_CASE("without --dry-run a GPU that is not there is the error it was") {
    const Outcome run = run_without_gpu(
        program("pig-generate"),
        {"-m", "tiny-2m", "-p", "a", "--device", "cuda", "-s", "run.plan_for=h200"});
    CHECK(run.status == 6);
    CHECK(run.out == "");
    const Outcome offload = run_without_gpu(
        program("pig-generate"),
        {"-m", "tiny-2m", "-p", "a", "-s", "model.offload=auto", "-s", "run.plan_for=h200"});
    CHECK(offload.status == 3);
    CHECK(has(offload.err, "choose a GPU with --device cuda"));
    // A recipe may name its card and still run here.
    const Outcome here = run_without_gpu(program("pig-generate"), {"-m", "tiny-2m", "-p", "a", "-n",
                                                                   "2", "-s", "run.plan_for=h200"});
    CHECK(here.status == 0);
    CHECK(here.out != "");
  }

  TEST_CASE("what asks for a GPU, and what does not") {
    const std::string planned = "(not this machine, run.plan_for";
    for (const std::vector<std::string>& flags : {std::vector<std::string>{"--device", "cuda"},
                                                  {"--device", "cuda:1"},
                                                  {"-s", "model.offload=auto"},
                                                  {"-s", "run.gpu_memory_limit=40GiB"},
                                                  {"-s", "run.plan_for=h100"}}) {
      CAPTURE(flags.back());
      const Outcome run = plan(flags);
      CHECK(run.status == 0);
      CHECK(has(run.out, planned));
      CHECK(has(run.out, "memory   cuda:"));
    }
    CHECK(has(plan({"--device", "cuda:1"}).out, "device   cuda:1  any GPU  79.54 GiB available"));
    for (const std::vector<std::string>& flags :
         {std::vector<std::string>{},
          {"--device", "cpu", "-s", "run.plan_for=h100"},
          {"--device", "cpu", "-s", "run.gpu_memory_limit=40GiB"}}) {
      const Outcome run = plan(flags, "tiny-2m");
      CHECK(run.status == 0);
      CHECK_FALSE(has(run.out, planned));
      CHECK_FALSE(has(run.out, "cuda:"));
    }
    const Outcome two = plan({"--device", "cuda:0,1"}, "tiny-16m");
    CHECK(two.status == 0);
    CHECK(has(two.out, "ranks    0, 1: 3 query heads, 1 KV head, 512 FFN channels"));
    CHECK(has(two.out, " M on this rank  "));
    CHECK(has(two.out, "memory   cuda:0"));
    const Outcome odd = plan({"--device", "cuda:0,1"}, "tiny-2m");
    CHECK(odd.status == 3);
    CHECK(has(odd.err, "run.world_size: is 2, which does not divide 3 query heads"));
  }

  TEST_CASE("benchmarks and training say what ranks have and send") {
    const std::vector<std::string> two = {"--device", "cuda:0,1", "-s", "run.plan_for=h200"};
    const auto plan_of = [&](const std::string& tool, std::vector<std::string> arguments) {
      arguments.insert(arguments.end(), {"--dry-run"});
      arguments.insert(arguments.end(), two.begin(), two.end());
      const Outcome text = run_without_gpu(program(tool), arguments);
      CAPTURE(text.err);
      CHECK(text.status == 0);
      CHECK(has(text.out, "ranks    "));
      CHECK(has(text.out, " ms"));
      arguments.insert(arguments.end(), {"--format", "jsonl"});
      Json decode;
      for (const Json& j : json_lines(run_without_gpu(program(tool), arguments).out))
        if (j.contains("ranks")) decode = j["ranks"];
      return decode;
    };
    const std::vector<std::string> sizes = {"-m",          "tiny-16m", "-s",
                                            "run.batch=8", "-s",       "run.context=512"};
    for (const char* tool : {"pig-bench", "magicdec-bench"}) {
      CAPTURE(tool);
      std::vector<std::string> arguments = sizes;
      if (tool == std::string("magicdec-bench"))
        arguments.insert(arguments.end(), {"-s", "bench.drafts=[{name: plain, kind: none}]"});
      const Json ranks = plan_of(tool, arguments);
      CHECK(ranks["kinds"].size() == 1);
      CHECK(ranks["kinds"][0]["query_heads"] == 3);
      CHECK(ranks["sums"] == 17);
      CHECK(ranks["traffic_ms"] > 0);
    }
    const TemporaryFolder folder;
    folder.write("data.jsonl", R"({"instruction": "Light", "output": "the lamp"})"
                               "\n");
    std::vector<std::string> arguments = {
        "-m",    "tiny-16m",          "--data", (folder / "data.jsonl").string(),
        "-s",    "train.method=full", "-o",     (folder / "run").string(),
        "--json"};
    arguments.insert(arguments.end(), {"--dry-run"});
    arguments.insert(arguments.end(), two.begin(), two.end());
    const Outcome train = run_without_gpu(program("s2ft-train"), arguments);
    CAPTURE(train.err);
    const Json j = Json::parse(train.out);
    const auto values = j["trained_values"].get<int64_t>();
    const auto own = j["ranks"]["own_values"].get<int64_t>();
    CHECK(2 * own >= values);
    CHECK(2 * own < values + 64);
    CHECK(j["ranks"]["bytes_a_step"] == 4 * (values + own));  // of two: sums, then values
    CHECK(j["ranks"]["traffic_ms"] > 0);
  }

  TEST_CASE("a card's memory, a limit below it, and one above") {
    const auto available = [](std::vector<std::string> flags) {
      flags.insert(flags.end(), {"--format", "jsonl"});
      const Outcome run = plan(std::move(flags), "tiny-2m");
      CHECK(run.status == 0);
      return Json::parse(run.out)["memory"]["cuda:0"]["available"].get<size_t>();
    };
    for (const GpuCard& card : gpu_cards()) {
      const std::string name = "run.plan_for=" + std::string(card.name);
      const size_t most = card.memory_bytes - kGiB + kDriver;
      CHECK(available({"-s", name}) == most);
      CHECK(available({"-s", name, "-s", "run.gpu_memory_limit=8GiB"}) == 8 * kGiB);
      CHECK(available({"-s", name, "-s", "run.gpu_memory_limit=8TiB"}) == most);
    }
    CHECK(available({"--device", "cuda"}) == 79 * kGiB + kDriver);
    CHECK(available({"-s", "run.gpu_memory_limit=300GiB"}) == 300 * kGiB);
  }

  TEST_CASE("a plan that the card has no room for") {
    const Outcome run = plan({"-s", "run.plan_for=rtx-4080"});
    CHECK(run.status == 5);
    CHECK(has(run.out, "  does not fit\n"));
    CHECK(has(run.err, "pig-generate: error: cuda:0: needs "));
    // The embedding is left out, and in host memory it has page tables.
    CHECK(has(run.err, " (process 550.0 MiB, weights 13.98 GiB, "));
    CHECK(has(run.err, "), 15.04 GiB available\n  hint: lower run.context or run.batch"));
    CHECK(plan({"-s", "run.plan_for=rtx-4090"}).status == 0);
    CHECK(plan({"-s", "run.plan_for=rtx-4080", "-s", "model.offload=auto"}).status == 0);
    // The host is another machine's, of which the recipe may tell.
    const Outcome host = plan({"-s", "run.plan_for=rtx-4090", "-s", "run.host_memory_limit=1MiB"});
    CHECK(host.status == 5);
    CHECK(has(host.err, "error: cpu: needs "));
  }

  TEST_CASE("a card that is not in the table") {
    const Outcome run = plan({"-s", "run.plan_for=a100"});
    CHECK(run.status == 3);
    CHECK(has(run.err,
              "--set #2: run.plan_for: no GPU of the table is called 'a100'; did you mean "
              "'a100-80' or 'a100-40'?\n"));
    CHECK(has(run.err, "b200, h200, h100, h100-pcie, a100-80, "));  // all of them, in the hint
    CHECK(has(plan({"-s", "run.plan_for=rtx-490"}).err, "did you mean 'rtx-4090'?"));
    const Outcome help = run_without_gpu(program("pig-generate"), {"--help-recipe=run"});
    CHECK(help.status == 0);
    CHECK(has(help.out, "run.plan_for"));
    for (const GpuCard& card : gpu_cards()) CHECK(has(help.out, std::string(card.name)));
  }

  TEST_CASE("times come from the card's rates") {
    // 15 GB of weights at 1008 GB/s; the KV cache of 8192 tokens is 1 GiB.
    const Json j = Json::parse(plan({"-s", "run.plan_for=rtx-4090", "--format", "jsonl"}).out);
    const double bytes = j["decode_step_bytes"].get<double>();
    CHECK(bytes == doctest::Approx(15.0e9 + 1.07e9).epsilon(0.02));
    CHECK(j["decode_ms_at_least"].get<double>() == doctest::Approx(bytes / 1008e6));
    CHECK(j["prefill_ms_at_least"].get<double>() ==
          doctest::Approx(j["prefill_tflop"].get<double>() / 165.2 * 1e3));
    CHECK(j["bound"] == "GPU memory, 1008 GB/s (data sheet)");
    const Json streamed = Json::parse(
        plan({"-s", "run.plan_for=rtx-4080", "-s", "model.offload=20", "--format", "jsonl"}).out);
    CHECK(streamed["layers_streamed"] == 20);
    CHECK(streamed["decode_ms_at_least"].get<double>() ==
          doctest::Approx(streamed["memory"]["cpu"]["weights"].get<double>() / 31.5e6));
    const Json any = Json::parse(plan({"--device", "cuda", "--format", "jsonl"}).out);
    CHECK_FALSE(any.contains("decode_ms_at_least"));
    CHECK(has(plan({"--device", "cuda"}).out, "(rates unknown until run.plan_for names a card)"));
  }

  TEST_CASE("every tool that plans a run on a GPU plans it without one, as text and as JSON") {
    const std::vector<std::string> pair = {"-m", "tiny-16m", "-s", "draft.path=tiny-2m"};
    const auto with = [](std::vector<std::string> flags, const std::vector<std::string>& more) {
      flags.insert(flags.end(), more.begin(), more.end());
      return flags;
    };
    const struct {
      std::string tool;
      std::vector<std::string> flags;
    } cases[] = {
        {program("pig-generate"), {"-m", "tiny-2m"}},
        {program("pig-eval"), {"-m", "tiny-2m", "--task", "perplexity"}},
        {program("pig-bench"), {"-m", "tiny-2m"}},
        {program("sequoia-generate"), {"-r", "sequoia/tiny-16m"}},
        {program("sequoia-acceptance"), {"-r", "sequoia/acceptance-tiny-16m"}},
        {program("sequoia-bench"), {"-r", "sequoia/bench-tiny-16m"}},
        {program("spec-check"), {"-r", "sequoia/tiny-16m"}},
        {program("sequoia-tree-search"), with(pair, {"--measure"})},
    };
    for (const auto& c : cases) {
      CAPTURE(c.tool);
      const std::vector<std::string> dry =
          with(c.flags, {"--dry-run", "--device", "cuda", "-s", "run.plan_for=l20"});
      const Outcome text = run_without_gpu(c.tool, dry);
      CHECK(text.status == 0);
      CHECK(has(text.out, "not this machine"));
      CHECK(has(text.out, "l20"));
      const Outcome lines = run_without_gpu(c.tool, with(dry, {"--format", "jsonl"}));
      CHECK(lines.status == 0);
      REQUIRE(json_lines(lines.out).size() >= 1);
      for (const Json& j : json_lines(lines.out)) {
        CHECK(j["event"] == "plan");
        CHECK(j["gpu"]["plan_for"] == "l20");
        CHECK(j["gpu"]["name"] == "NVIDIA L20");
        CHECK(j["gpu"]["this_machine"] == false);
        CHECK(j["memory"]["cuda:0"]["planned_peak"] > 0);
        CHECK(j["fits"] == true);
      }
    }
  }

  TEST_CASE("the plans that an H200 recorded are those for one that is not here") {
    int compared = 0;
    for (const Json& record :
         json_lines(file_text(test::source_dir() / "records/gpu-h200.jsonl"))) {
      if (record["tool"] != "pig-bench" || !record["memory"].contains("cuda:0")) continue;
      const Json &recipe = record["recipe"]["effective"], &was = record["memory"]["cuda:0"];
      std::vector<std::string> flags = {
          "--dry-run",
          "--format",
          "jsonl",
          "-s",
          "run.plan_for=h200",
          "-m",
          std::filesystem::path(recipe["model"]["path"].get<std::string>()).filename().string()};
      for (const auto& [section, key] :
           std::initializer_list<std::pair<const char*, const char*>>{{"run", "batch"},
                                                                      {"run", "context"},
                                                                      {"run", "prefill_chunk"},
                                                                      {"bench", "phases"},
                                                                      {"bench", "new_tokens"},
                                                                      {"bench", "random_kv"}})
        flags.insert(flags.end(),
                     {"-s", fmt::format("{}.{}={}", section, key, recipe[section][key].dump())});
      CAPTURE(record["recipe"]["overrides"].dump());
      const Outcome run = run_without_gpu(program("pig-bench"), flags);
      REQUIRE(run.status == 0);
      const Json now = json_lines(run.out).at(0)["memory"]["cuda:0"];
      for (const char* group : {"weights", "kv"}) CHECK(now[group] == was[group]);
      // Buffers of steps and draws have changed by some KiB since.
      CHECK(std::abs(now["sampling"].get<double>() - was["sampling"].get<double>()) < 16384);
      // Which counted buffers alone.
      CHECK(now["planned_peak"].get<double>() - now["process"].get<double>() ==
            doctest::Approx(was["planned_peak"].get<double>()).epsilon(0.002));
      ++compared;
    }
    CHECK(compared >= 6);
  }

  TEST_CASE("a hybrid's texts end where a block's shared memory does, and the error says where") {
    const auto plan_hybrid = [](const std::string& context, const std::string& group) {
      return run_without_gpu(program("pig-generate"),
                             {"-m", "synthetic:llama-3.1-8b", "--dry-run", "--device", "cuda", "-s",
                              "run.plan_for=h200", "-s", "cache.kind=hybrid", "-s",
                              "cache.hybrid.group=" + group, "-s", "run.context=" + context});
    };
    for (const auto& [group, most] : std::initializer_list<std::pair<const char*, int>>{
             {"head", 1345152}, {"shared", 1022272}}) {
      CAPTURE(group);
      const Outcome far = plan_hybrid("3000000", group);
      CHECK(far.status == 6);
      CHECK(far.out == "");
      CHECK(has(far.err, fmt::format("hybrid supports up to {} indexed tokens a sequence on this "
                                     "GPU (232448 bytes of shared memory a block)",
                                     most)));
      CHECK(has(far.err, "\n  hint: lower run.context, or use --device cpu\n"));
      // Sinks and the last tokens are not indexed.
      CHECK(plan_hybrid(fmt::format("{}", most + 68), group).status != 6);
      CHECK(plan_hybrid(fmt::format("{}", most + 69), group).status == 6);
    }
  }

  TEST_CASE("a sweep over cards tells of each whether the run fits") {
    const Outcome run = run_without_gpu(
        program("pig-bench"),
        {"-m", "synthetic:llama-3.1-8b", "--dry-run", "--phase", "decode", "-s", "run.context=16Ki",
         "--sweep", "run.plan_for=rtx-4080,rtx-4090", "--format", "csv"});
    CHECK(run.status == 5);
    CHECK(has(run.out, "\"rtx-4080, not this machine\""));
    CHECK(has(run.out, "\"rtx-4090, not this machine\""));
    CHECK(has(run.out, ",15.04 GiB,\"does not fit, embedding in host memory\"\n"));
    CHECK(has(run.out, ",23.04 GiB,fits\n"));
  }
}
