#include <doctest/doctest.h>

#include <fmt/format.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/probe.h"
#include "io/file.h"

using namespace tandem::testing;
using Json = nlohmann::json;

namespace {

Outcome s2ft_train(std::vector<std::string> arguments) {
  return run_process(program("s2ft-train"), {.arguments = std::move(arguments)});
}

/// Four records, of which the last has no answer.
std::string write_data(const TemporaryFolder& folder) {
  return folder
      .write("train.jsonl",
             "{\"instruction\": \"Say a\", \"output\": \"a\"}\n"
             "{\"instruction\": \"Say b\", \"output\": \"b b b\"}\n"
             "{\"instruction\": \"Say c\", \"output\": \"c \\u001b[2J c\"}\n"
             "{\"instruction\": \"Say nothing\", \"output\": \"\"}\n")
      .string();
}

std::vector<std::string> plain(const std::string& data, std::vector<std::string> more) {
  std::vector<std::string> all = {"-m", "tiny-16m", "--data", data, "-s", "data.template=plain"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace

TEST_SUITE("cli/s2ft-train") {
  TEST_CASE("--dry-run counts samples, tokens, micro-batches and steps") {
    const TemporaryFolder folder;
    const std::string data = write_data(folder);
    const Outcome run = s2ft_train(plain(data, {"--dry-run", "-s", "train.batch=2"}));
    CHECK(run.status == 0);
    CHECK(run.out.find("data     " + data + "  4 records, 3 samples  3 for training, 0 for") == 0);
    CHECK(run.out.find("records  1 left out (no answer)\n") != std::string::npos);
    CHECK(run.out.find("steps    2 per epoch, 2 samples each  6 in total\n") != std::string::npos);
    const Json plan =
        Json::parse(s2ft_train(plain(data, {"--dry-run", "--json", "-s", "train.batch=2", "-s",
                                            "train.batching=pad", "-s", "data.val_size=1"}))
                        .out);
    CHECK(plan["data"]["train_samples"] == 2);
    CHECK(plan["data"]["val_samples"] == 1);
    CHECK(plan["epoch"]["steps"] == 1);
    CHECK(plan["steps"] == 3);
    CHECK(plan["epoch"]["padding"].get<double>() > 0);
    CHECK(plan["epoch"]["supervised_tokens"].get<int>() < plan["epoch"]["tokens"].get<int>());
  }

  TEST_CASE("--show-samples marks what is supervised, and writes nothing to a terminal that acts") {
    const TemporaryFolder folder;
    const std::string data = write_data(folder);
    const Outcome run = s2ft_train(plain(data, {"--show-samples", "10"}));
    CHECK(run.status == 0);
    CHECK(run.out.find("=== step 1, micro-batch 1 of 1: 3 documents, ") == 0);
    CHECK(run.out.find("<|begin_of_text|>Say b\n[[b b b<|end_of_text|>]]\nids 0 ") !=
          std::string::npos);
    CHECK(run.out.find("[[c ?[2J c<|end_of_text|>]]") != std::string::npos);
    CHECK(run.out.find(data + ":2, ") != std::string::npos);
    CHECK(run.out.find('\033') == std::string::npos);
    const Outcome colored = s2ft_train(plain(data, {"--show-samples", "10", "--color", "always"}));
    CHECK(colored.out.find("[[\033[32mb b b<|end_of_text|>\033[0m]]") != std::string::npos);
    const Outcome one = s2ft_train(plain(data, {"--show-samples", "1"}));
    CHECK(one.out.find("--- document 2") == std::string::npos);
  }

  TEST_CASE("shown samples are data: tokens that a model without tokenizer is trained on") {
    const TemporaryFolder folder;
    const Outcome run =
        s2ft_train(plain(write_data(folder), {"--show-samples", "3", "--format", "jsonl"}));
    const auto lines = json_lines(run.out);
    REQUIRE(lines.size() == 3);
    CHECK(lines[0]["supervised"].size() == 1);
    const std::string tokens = folder.write("tokens.jsonl", run.out).string();
    const Outcome again = s2ft_train({"-m", "synthetic:llama-3.2-1b", "--data", tokens,
                                      "--show-samples", "3", "--format", "jsonl"});
    CHECK(again.status == 0);
    const auto same = json_lines(again.out);
    REQUIRE(same.size() == 3);
    CHECK(same[0]["ids"].size() >= 3);
    const Outcome text =
        s2ft_train({"-m", "synthetic:llama-3.2-1b", "--data", write_data(folder), "--dry-run"});
    CHECK(text.status == 4);
    CHECK(text.err.find("train.jsonl:1: text needs a tokenizer, but the model has none\n") !=
          std::string::npos);
  }

  TEST_CASE("equal seeds give equal orders, on any number of threads") {
    const TemporaryFolder folder;
    const std::string data = write_data(folder);
    const auto order = [&](const char* seed, const char* threads) {
      return s2ft_train(plain(data, {"--show-samples", "3", "--seed", seed, "-t", threads})).out;
    };
    const std::string first = order("1", "1");
    CHECK(first == order("1", "2"));
    bool differs = false;
    for (const char* seed : {"2", "3", "4", "5"}) differs = differs || order(seed, "1") != first;
    CHECK(differs);
  }

  TEST_CASE("what is wrong with data or flags, by status") {
    const TemporaryFolder folder;
    const std::string data = write_data(folder);
    CHECK(s2ft_train(plain(data, {})).err.find("output.path: expected a folder") !=
          std::string::npos);
    const auto refused = [&](const std::string& setting, const std::string& text) {
      const Outcome run = s2ft_train(plain(data, {"-o", (folder / "run").string(), "-s", setting}));
      CAPTURE(run.err);
      CHECK(run.status == 3);
      CHECK(run.err.find(text) != std::string::npos);
    };

    refused("train.select.ratios={o: 0, d: 0.0001}", "train.select.ratios");
    CHECK(s2ft_train({"-m", "tiny-16m", "--dry-run"}).status == 3);
    CHECK(s2ft_train(plain("missing.json", {"--dry-run"})).status == 4);
    const Outcome broken = s2ft_train(plain(
        folder.write("b.jsonl", "{\"prompt\": \"a\", \"output\": \"b\"}\n{\"prompt\"\n").string(),
        {"--dry-run"}));
    CHECK(broken.status == 4);
    CHECK(broken.err.find("b.jsonl:2:10: malformed JSON") != std::string::npos);
    CHECK(s2ft_train(plain(data, {"--show-samples", "0"})).status == 2);
    CHECK(s2ft_train(plain(data, {"--show-samples", "3", "--dry-run"})).status == 2);
    CHECK(s2ft_train(plain(data, {"--dry-run", "-s", "train.ratio=1"})).status == 3);
    CHECK(s2ft_train(plain(data, {"--dry-run", "-s", "data.val_size=3"})).status == 3);
    const Outcome empty = s2ft_train(plain(folder.write("e.jsonl", "").string(), {"--dry-run"}));
    CHECK(empty.status == 4);
    CHECK(empty.err.find("e.jsonl: expected records, found none") != std::string::npos);
    for (const char* ratio : {"1.5", "-0.1", ".nan", ".inf"}) {
      CAPTURE(ratio);
      const Outcome bad = s2ft_train(
          plain(data, {"--dry-run", "-s", fmt::format("train.select.ratios={{o: {}}}", ratio)}));
      CHECK(bad.status == 3);
      CHECK(bad.err.find("train.select.ratios.o: ") != std::string::npos);
    }
  }

  TEST_CASE("a run is not begun twice nor gone on with as another, and its model answers") {
    const TemporaryFolder folder;
    std::string records;
    for (int i = 0; i < 64; ++i)
      records += fmt::format("{{\"instruction\": \"Number {0}\", \"output\": \"{0} {0}\"}}\n", i);
    const std::string data = folder.write("train.jsonl", records).string();
    const auto arguments = [&](const char* run, std::vector<std::string> more) {
      std::vector<std::string> all = {"-m",
                                      "tiny-2m",
                                      "--data",
                                      data,
                                      "-s",
                                      "data.template=plain",
                                      "-s",
                                      "data.val_size=8",
                                      "-s",
                                      "train.steps=30",
                                      "-s",
                                      "train.batch=8",
                                      "-s",
                                      "train.save_every=4",
                                      "-s",
                                      "train.keep_checkpoints=30",
                                      "-s",
                                      "train.optimizer.lr=2e-3",
                                      "-s",
                                      "train.select.ratios={o: 0.25, d: 0.1}",
                                      "--no-progress",
                                      "-o",
                                      (folder / run).string()};
      all.insert(all.end(), more.begin(), more.end());
      return all;
    };
    const auto bytes = [&](const char* run, const char* file) {
      return tandem::io::read_file(folder / run / file);
    };
    const Outcome whole = s2ft_train(arguments("whole", {}));
    CAPTURE(whole.err);
    REQUIRE(whole.status == 0);
    CHECK(whole.out.find("trained  30 steps") == 0);
    const std::string model = bytes("whole", "model/model.safetensors");
    const Outcome again = s2ft_train(arguments("whole", {}));
    CHECK(again.status == 2);
    CHECK(again.err.find("already holds a run") != std::string::npos);
    CHECK(s2ft_train(arguments("whole", {"--resume", "-s", "run.seed=1"}))
              .err.find("run.seed (now 1, then 0)") != std::string::npos);
    CHECK(bytes("whole", "model/model.safetensors") == model);

    // A line a step, and one a validation, each once; the loss falls.
    std::vector<Json> steps;
    int validations = 0;
    std::istringstream lines(bytes("whole", "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const Json json = Json::parse(line);
      if (json.contains("val_loss"))
        ++validations;
      else
        steps.push_back(json);
    }
    REQUIRE(steps.size() == 30);
    for (int i = 0; i < 30; ++i) CHECK(steps[static_cast<size_t>(i)]["step"] == i + 1);
    CHECK(validations == 10);
    CHECK(steps.back()["loss"].get<double>() < 0.8 * steps.front()["loss"].get<double>());

    const Outcome text = run_process(
        program("pig-generate"), {.arguments = {"-m", (folder / "whole" / "model").string(), "-p",
                                                "Number 7\n", "-n", "4", "-q"}});
    CAPTURE(text.err);
    CHECK(text.status == 0);
  }

  TEST_CASE("a run's folder holds no model of others, least of all the one that is trained") {
    const TemporaryFolder folder;
    const std::string data = write_data(folder);
    const auto train = [&](const std::string& model, const std::string& records,
                           const std::string& run, std::vector<std::string> more = {}) {
      std::vector<std::string> all = {
          "-m", model,           "--data", records,         "-s", "data.template=plain",
          "-s", "train.steps=1", "-s",     "train.batch=1", "-o", (folder / run).string(),
          "-q"};
      all.insert(all.end(), more.begin(), more.end());
      return s2ft_train(all);
    };
    const auto refused = [](const Outcome& run, const std::string& says) {
      CAPTURE(run.err);
      CHECK(run.status == 2);
      CHECK(has(run.err, says));
      CHECK(!has(run.err, "trained"));
    };
    const std::filesystem::path own = folder / "own/model";
    std::filesystem::create_directories(own);
    std::filesystem::copy(tandem::test::source_dir() / "recipes/models/tiny-2m", own);
    refused(train(own.string(), data, "own"), "this run would write the file that it reads");
    CHECK(!std::filesystem::exists(folder / "own/metrics.jsonl"));
    std::filesystem::create_directories(folder / "other/model");
    for (const std::vector<std::string>& how : {{}, std::vector<std::string>{"--overwrite"}})
      refused(train("tiny-2m", data, "other", how), "other/model exists, but ");

    CHECK(train("tiny-2m", data, "run").status == 0);
    std::ofstream(folder / "run/model/old.json") << "{}";
    CHECK(train("tiny-2m", data, "run", {"--overwrite"}).status == 0);
    CHECK(std::filesystem::exists(folder / "run/model/config.json"));
    CHECK(!std::filesystem::exists(folder / "run/model/old.json"));
    const std::filesystem::path metrics = folder / "run/metrics.jsonl";
    const std::string records = file_text(data);
    std::ofstream(metrics) << records;
    refused(train("tiny-2m", metrics.string(), "run", {"--overwrite"}),
            "metrics.jsonl: this run would write the file that it reads");
    CHECK(file_text(metrics) == records);
  }

  TEST_CASE("steps without a finite loss are named by their records, and end the run") {
    const TemporaryFolder folder;
    const std::string data = write_data(folder);
    const Outcome run =
        s2ft_train({"-m", "tiny-2m", "--data", data, "-s", "data.template=plain", "-s",
                    "train.steps=9", "-s", "train.batch=2", "-s", "train.optimizer.lr=1e38", "-s",
                    "train.method=full", "-s", "train.schedule={kind: constant, warmup_steps: 0}",
                    "-o", (folder / "run").string(), "--no-progress"});
    CAPTURE(run.err);
    CHECK(run.status == 7);
    CHECK(run.err.find("warning: step 2 is skipped: loss ") != std::string::npos);
    CHECK(run.err.find(", records " + data + ":") != std::string::npos);
    CHECK(run.err.find("error: step 4: 3 steps in a row had a non-finite loss or gradient\n  hint: "
                       "lower train.optimizer.lr") != std::string::npos);
    const auto lines = json_lines(file_text(folder / "run" / "metrics.jsonl"));
    REQUIRE(lines.size() == 4);
    CHECK(lines[0]["skipped"] == false);
    CHECK(lines[3]["skipped"] == true);
  }

  TEST_CASE("a run that does not fit names the smallest change with which it does") {
    const TemporaryFolder folder;
    std::string records;
    for (int i = 0; i < 32; ++i)
      records += fmt::format("{{\"instruction\": \"Number {}\", \"output\": \"{}\"}}\n", i,
                             std::string(200, 'x'));
    const std::string data = folder.write("train.jsonl", records).string();
    const auto run = [&](std::vector<std::string> more) {
      std::vector<std::string> all = {"--dry-run", "-s", "train.batch=16"};
      all.insert(all.end(), more.begin(), more.end());
      return s2ft_train(plain(data, all));
    };
    const auto peak = [&](std::vector<std::string> more) {
      more.push_back("--json");
      return Json::parse(run(more).out)["memory"]["cpu"]["planned_peak"].get<double>();
    };
    const auto limit = [&](double bytes) {
      return fmt::format("run.host_memory_limit={:.0f}KiB", bytes / 1024);
    };
    const auto level = [](int n) { return fmt::format("train.recompute={}", n); };
    const double light = peak({"-s", level(1)}), ffn = peak({"-s", level(2)}),
                 layer = peak({"-s", level(3)});
    REQUIRE(ffn < 0.99 * light);
    REQUIRE(layer < 0.95 * ffn);
    // A limit under which a run is refused: with what the hint says it is not.
    const auto mended = [&](std::vector<std::string> settings, const std::string& hint) {
      const Outcome refused = run(settings);
      CAPTURE(refused.err);
      CHECK(refused.status == 5);
      const std::string begin = "  hint: it fits with ";
      const size_t at = refused.err.find(begin + hint);
      REQUIRE(at != std::string::npos);
      std::string advice = refused.err.substr(at + begin.size());
      advice = advice.substr(0, advice.find_first_of(",\n"));
      for (size_t from = 0; from != std::string::npos;) {  // "a: 1 and b: 2"
        const size_t end = advice.find(" and ", from);
        std::string one = advice.substr(from, end == std::string::npos ? end : end - from);
        one.replace(one.find(": "), 2, "=");
        settings.insert(settings.end(), {"-s", one});
        from = end == std::string::npos ? end : end + 5;
      }
      const Outcome fits = run(settings);
      CAPTURE(fits.err);
      CHECK(fits.status == 0);
    };
    mended({"-s", level(1), "-s", limit((light + ffn) / 2)}, "train.recompute: 2");
    mended({"-s", level(1), "-s", limit((ffn + layer) / 2)}, "train.recompute: 3");
    mended({"-s", limit(0.95 * layer)}, "train.micro_tokens: ");
    mended({"-s", level(1), "-s", limit(0.75 * layer)}, "train.");
    const std::vector<std::string> least = {
        "-s", level(3), "-s", "train.max_tokens=100", "-s", "train.micro_tokens=100"};
    mended({"-s", level(3), "-s", limit(1.02 * peak(least))}, "train.micro_tokens: 1");
    const std::string none = run({"-s", limit(0x1p20)}).err;
    CHECK(none.find("hint: it does not fit at any sample or micro-batch") != std::string::npos);
    CHECK(none.find("run.host_memory_limit") != std::string::npos);
    // All weights: states are most of it, and may be halved; other methods keep them in f32.
    auto tight = least;
    tight.insert(tight.end(), {"-s", "train.method=full"});
    auto narrow = tight;
    narrow.insert(narrow.end(), {"-s", "train.optimizer.states=bf16"});
    tight.insert(tight.end(), {"-s", limit(1.05 * peak(narrow))});
    mended(tight, "train.optimizer.states: bf16");
    CHECK(none.find("states") == std::string::npos);
    const std::string on_gpu =
        run({"-s", "run.plan_for=h100", "--device", "cuda", "-s", "run.gpu_memory_limit=1MiB"}).err;
    CAPTURE(on_gpu);
    CHECK(on_gpu.find("raise run.gpu_memory_limit") != std::string::npos);
  }

  TEST_CASE("answers without an end, BOS twice and samples that are cut are warned of") {
    const TemporaryFolder folder;
    const std::string data = write_data(folder);
    const Outcome endless =
        s2ft_train({"-m", "tiny-16m", "--data", data, "--dry-run", "-s", "data.template=custom",
                    "-s", "data.custom={prompt: '{instruction}: ', answer: '{output}'}"});
    CHECK(endless.status == 0);
    CHECK(endless.err.find("warning: 3 answers do not end with a control token") !=
          std::string::npos);
    const std::string twice = folder
                                  .write("b.jsonl",
                                         "{\"prompt\": \"<|begin_of_text|><|begin_of_text|>a\", "
                                         "\"output\": \"b\"}\n")
                                  .string();
    CHECK(s2ft_train(plain(twice, {"--dry-run"}))
              .err.find("warning: 1 samples begin with two BOS tokens") != std::string::npos);
    const Outcome cut = s2ft_train(plain(data, {"--dry-run", "-s", "train.max_tokens=7"}));
    CHECK(cut.err.find("cut to train.max_tokens, 7") != std::string::npos);
  }

  TEST_CASE("trains next to weights that are quantized at load time") {
    const TemporaryFolder folder;
    const std::string data = write_data(folder);
    const auto run = [&](const std::string& weights, std::vector<std::string> more) {
      more.insert(more.end(), {"-s", "model.weights=" + weights});
      return s2ft_train(plain(data, std::move(more)));
    };
    const auto bytes = [&](const std::string& weights, const char* place) {
      const Outcome o = run(weights, {"--dry-run", "--json", "-s", "run.plan_for=h200", "--device",
                                      place == std::string("cpu") ? "cpu" : "cuda"});
      CAPTURE(o.err);
      REQUIRE(o.status == 0);
      return Json::parse(o.out)["memory"][place]["weights"].get<double>();
    };
    for (const char* place : {"cpu", "cuda:0"}) {
      // 4.4 bits in place of 16, and 8.25 of the tied head.
      CHECK(bytes("int4", place) < 0.45 * bytes("bf16", place));
      CHECK(bytes("int8", place) < 0.6 * bytes("bf16", place));
      CHECK(bytes("fp8", place) < 0.6 * bytes("bf16", place));
    }
    const Outcome wide = run("int4", {"--dry-run", "-s", "run.plan_for=h200", "--device", "cuda",
                                      "-s", "model.compute=f32"});
    CAPTURE(wide.err);
    CHECK(wide.status == 0);
    CHECK(wide.err.find("matrices in f32 in memory, since cuda:0 multiplies no such codes with "
                        "model.compute f32") != std::string::npos);
    const Outcome full = run("int4", {"--dry-run", "-s", "train.method=full"});
    CHECK(full.status == 3);
    CHECK(full.err.find("model.weights: needs train.method s2ft, lora or dora") !=
          std::string::npos);

    const std::string out = (folder / "run").string();
    const Outcome trained = run("int4", {"--device", "cpu", "-o", out, "-s", "train.steps=2", "-s",
                                         "train.optimizer.lr=1e-3"});
    CAPTURE(trained.err);
    REQUIRE(trained.status == 0);
    CHECK(trained.err.find("57 matrices as i4 g64 f16 integer, i8 g64 f16, decoded to bf16") !=
          std::string::npos);
    // The adapter is for the base, which may be quantized or not.
    for (const char* weights : {"auto", "int4"}) {
      const Outcome text = run_process(
          program("pig-generate"), {.arguments = {"-m", "tiny-16m", "-p", "x", "-n", "2", "-s",
                                                  "model.adapters=[{path: " + out + "/adapter}]",
                                                  "-s", std::string("model.weights=") + weights}});
      CAPTURE(text.err);
      CHECK(text.status == 0);
    }
  }

  TEST_CASE("the installed recipes are valid") {
    const TemporaryFolder folder;
    const std::string data = write_data(folder);
    for (const char* name : {"s2ft/tiny-16m", "s2ft/llama2-7b-commonsense", "s2ft/llama2-7b-math",
                             "s2ft/llama3-8b-commonsense", "s2ft/llama3-8b-math"}) {
      CAPTURE(name);
      const Outcome check = s2ft_train({"-r", name, "-m", "tiny-16m", "--data", data, "--check"});
      CHECK(check.status == 0);
      CHECK(check.out + check.err == "");
    }
  }

  TEST_CASE("--print-recipe reads back as it was") {
    const TemporaryFolder folder;
    const std::string data = write_data(folder);
    const Outcome first = s2ft_train(
        {"-r", "s2ft/llama2-7b-math", "-m", "tiny-16m", "--data", data, "--print-recipe"});
    CHECK(first.status == 0);
    const std::string file = folder.write("r.yaml", first.out).string();
    const Outcome second = s2ft_train({"-r", file, "--print-recipe"});
    const auto values = [](const std::string& text) {
      std::string all;
      std::istringstream lines(text);
      for (std::string line; std::getline(lines, line);)
        all += line.substr(0, line.find_last_not_of(' ', line.find("  #")) + 1) + "\n";
      return all;
    };
    CHECK(values(first.out) == values(second.out));
  }
}
