#include <doctest/doctest.h>

#include <fmt/format.h>

#include <csignal>
#include <filesystem>

#include "cli/probe.h"
#include "io/file.h"

using namespace tandem::testing;
using Json = nlohmann::json;

namespace {

/// Runs of s2ft-train on 48 records, in folders of one folder.
struct Runs {
  TemporaryFolder folder;
  std::string method;

  explicit Runs(std::string method_of) : method(std::move(method_of)) {
    std::string records;
    for (int i = 0; i < 48; ++i)
      records += fmt::format("{{\"instruction\": \"Number {0}\", \"output\": \"{0} {0}\"}}\n", i);
    folder.write("train.jsonl", records);
  }
  std::vector<std::string> arguments(const std::string& run,
                                     const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"-m",     "tiny-2m",
                                    "--data", (folder / "train.jsonl").string(),
                                    "-o",     (folder / run).string(),
                                    "-q",     "--no-progress"};
    for (const char* setting : {"data.template=plain", "data.val_size=8", "train.steps=12",
                                "train.batch=8", "train.save_every=2", "train.optimizer.lr=5e-3",
                                "train.lora.dropout=0.1", "train.lora.rank=4"})
      all.insert(all.end(), {"-s", setting});
    all.insert(all.end(), {"-s", "train.method=" + method});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Outcome train(const std::string& run, const std::vector<std::string>& more = {}) const {
    return run_process(program("s2ft-train"), {.arguments = arguments(run, more)});
  }
  std::string bytes(const std::string& name) const { return tandem::io::read_file(folder / name); }
  Outcome generate(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"-p", "Number 7\n", "-n", "24", "-q", "--device", "cpu",
                                       "-s", "model.compute=f32"});
    return run_process(program("pig-generate"), {.arguments = std::move(arguments)});
  }
};

}  // namespace

TEST_SUITE("cli/s2ft-train low rank") {
  TEST_CASE("a run, killed and gone on with; its adapter and its model write the same text") {
    for (const char* method : {"lora", "dora"}) {
      CAPTURE(method);
      const Runs runs(method);
      const Outcome whole = runs.train("whole");
      CAPTURE(whole.err);
      REQUIRE(whole.status == 0);
      CHECK(whole.out.find("\nadapter  " + (runs.folder / "whole/adapter").string()) !=
            std::string::npos);
      const Outcome killed = run_process(
          program("s2ft-train"),
          {.arguments = runs.arguments("killed"), .signal = SIGKILL, .signal_when = [&] {
             return file_text(runs.folder / "killed/metrics.jsonl").find("{\"step\":5,") !=
                    std::string::npos;
           }});
      CHECK(killed.status == 128 + SIGKILL);
      const Outcome resumed = runs.train("killed", {"--resume"});
      CAPTURE(resumed.err);
      REQUIRE(resumed.status == 0);
      for (const char* file : {"adapter/adapter_model.safetensors", "adapter/adapter_config.json",
                               "model/model.safetensors"})
        CHECK(runs.bytes(std::string("whole/") + file) ==
              runs.bytes(std::string("killed/") + file));

      const Json config = Json::parse(runs.bytes("whole/adapter/adapter_config.json"));
      CHECK(config["r"] == 4);
      CHECK(config["lora_alpha"] == 64);
      CHECK(config["use_dora"] == (runs.method == "dora"));
      CHECK(config["base_model_name_or_path"].get<std::string>().ends_with("tiny-2m"));
      CHECK(config["target_modules"] ==
            Json({"q_proj", "k_proj", "v_proj", "up_proj", "down_proj"}));

      const std::string adapters =
          fmt::format("model.adapters=[{{path: {}}}]", (runs.folder / "whole/adapter").string());
      const Outcome with = runs.generate({"-m", "tiny-2m", "-s", adapters});
      CAPTURE(with.err);
      REQUIRE(with.status == 0);
      CHECK(with.out != runs.generate({"-m", "tiny-2m"}).out);
      const Outcome merged = runs.generate({"-m", (runs.folder / "whole/model").string()});
      CHECK(merged.status == 0);
      const auto s2ft_adapter = [&](std::vector<std::string> more) {
        more.insert(more.begin(), {"-m", "tiny-2m", "--adapter", (runs.folder / "whole").string()});
        return run_process(program("s2ft-adapter"), {.arguments = more});
      };
      const Outcome said = s2ft_adapter({"--verify"});
      CHECK(said.status == 0);
      CHECK(said.out.find(runs.method == "dora" ? "DoRA of PEFT" : "LoRA of PEFT") !=
            std::string::npos);
      CHECK(said.out.find("rank 4 in layers 0-") != std::string::npos);
      const std::string copy = (runs.folder / "copy").string();
      const Outcome again = s2ft_adapter({"--to", "lora", "-o", copy, "--verify"});
      CHECK(again.status == (runs.method == "dora" ? 4 : 0));
      CHECK((again.err.find("writing a DoRA adapter") != std::string::npos) ==
            (runs.method == "dora"));
      CHECK(std::filesystem::exists(copy) == (runs.method == "lora"));
    }
  }

  TEST_CASE("a plan counts the factors, a changed setting is another run, every key counts") {
    const Runs runs("lora");
    const Outcome plan = runs.train("a", {"--dry-run"});
    CAPTURE(plan.err);
    CHECK(plan.status == 0);
    CHECK(plan.out.find("inputs of B") != std::string::npos);
    CHECK(plan.out.find("low_rank ") != std::string::npos);
    const auto values = [&](const std::vector<std::string>& more) {
      std::vector<std::string> all = {"--dry-run", "--json"};
      all.insert(all.end(), more.begin(), more.end());
      return Json::parse(runs.train("a", all).out)["trained_values"].get<int64_t>();
    };
    const int64_t of_four = values({});
    CHECK(values({"-s", "train.lora.rank=8"}) == 2 * of_four);
    CHECK(values({"-s", "train.lora.targets=[down]"}) < of_four / 3);
    REQUIRE(runs.train("run").status == 0);
    for (const char* change : {"train.lora.rank=8", "train.lora.alpha=32", "train.lora.dropout=0.2",
                               "train.lora.rslora=true", "train.lora.targets=[q, v]"}) {
      const Outcome other = runs.train("run", {"--resume", "-s", change});
      CAPTURE(other.err);
      CHECK(other.status == 2);
      const std::string key = std::string(change).substr(0, std::string(change).find('='));
      CHECK(other.err.find(key) != std::string::npos);
      // And has an effect.
      REQUIRE(runs.train("other", {"--overwrite", "-s", change}).status == 0);
      CHECK(runs.bytes("other/model/model.safetensors") !=
            runs.bytes("run/model/model.safetensors"));
    }
  }
}
