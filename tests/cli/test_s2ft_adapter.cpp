#include <doctest/doctest.h>

#include <fmt/format.h>

#include <filesystem>

#include "cli/probe.h"
#include "io/file.h"

using namespace tandem::testing;
using Json = nlohmann::json;

namespace {

Outcome s2ft_adapter(std::vector<std::string> arguments) {
  return run_process(program("s2ft-adapter"), {.arguments = std::move(arguments)});
}

/// Four steps of tiny-2m on 32 records, in folder `run`.
struct Run {
  TemporaryFolder folder;
  std::string run = (folder / "run").string();

  Run() {
    std::string records;
    for (int i = 0; i < 32; ++i)
      records += fmt::format("{{\"instruction\": \"Number {0}\", \"output\": \"{0} {0}\"}}\n", i);
    const Outcome trained = run_process(
        program("s2ft-train"),
        {.arguments = {"-m", "tiny-2m", "--data", folder.write("train.jsonl", records).string(),
                       "-s", "data.template=plain", "-s", "train.steps=4", "-s", "train.batch=8",
                       "-s", "train.optimizer.lr=2e-3", "-s",
                       "train.select.ratios={o: 0.25, d: 0.1, v: 0.5, u: 0.1}", "--no-progress",
                       "-o", run}});
    CAPTURE(trained.err);
    REQUIRE(trained.status == 0);
  }
  std::string at(const char* name) const { return (folder / name).string(); }
};

}  // namespace

TEST_SUITE("cli/s2ft-adapter") {
  TEST_CASE("what an adapter is, checked, and merged into the model of its run") {
    const Run r;
    const Outcome text = s2ft_adapter({"-m", "tiny-2m", "--adapter", r.run});
    CAPTURE(text.err);
    CAPTURE(text.out);
    REQUIRE(text.status == 0);
    CHECK(text.out.find("adapter  " + r.at("run/adapter") + "  s2ft-adapter, 4 steps\n") == 0);
    CHECK(text.out.find("base     'tiny-2m'  fingerprint ") != std::string::npos);
    const Outcome run =
        s2ft_adapter({"-m", "tiny-2m", "--adapter", r.at("run/adapter"), "--json", "--verify"});
    REQUIRE(run.status == 0);
    const Json json = Json::parse(run.out);
    CHECK(json["verified"] == true);
    CHECK(json["steps"] == 4);
    CHECK(json["selection"]["ratios"]["v"] == 0.5);
    REQUIRE(json["matrices"].size() == 4);
    const auto config =
        Json::parse(file_text(tandem::test::source_dir() / "recipes/models/tiny-2m/config.json"));
    const int dim = config["hidden_size"], ffn = config["intermediate_size"],
              heads = config["num_attention_heads"];
    int64_t values = 0;
    for (const Json& m : json["matrices"]) {
      CHECK(m["change_norm"].get<double>() > 0);
      CHECK(m["change_norm"].get<double>() < m["base_norm"].get<double>());
      int units = 0;
      for (const Json& n : m["units"]) units += n.get<int>();
      const bool in_heads = m["matrix"] == "o" || m["matrix"] == "v";
      values += int64_t{units} * dim * (in_heads ? dim / heads : 1);
      const int layers = config["num_hidden_layers"];
      if (m["matrix"] == "o") CHECK(units == heads * layers / 4);
      if (m["matrix"] == "down") CHECK(units == ffn * layers / 10);
    }
    CHECK(values == json["values"].get<int64_t>());

    const Outcome merged = s2ft_adapter(
        {"-m", "tiny-2m", "--adapter", r.run, "--to", "model", "-o", r.at("merged"), "--verify"});
    CAPTURE(merged.err);
    REQUIRE(merged.status == 0);
    CHECK(merged.out.find("verified outside ") != std::string::npos);
    CHECK(merged.out.find(fmt::format("verified inside    {} weights are the adapter's values",
                                      values)) != std::string::npos);
    CHECK(merged.out.find("\nmodel    " + r.at("merged") + "\n") != std::string::npos);
    // The run's own model, file by file.
    for (const auto& entry : std::filesystem::directory_iterator(r.folder / "run" / "model")) {
      const std::string name = entry.path().filename().string();
      CAPTURE(name);
      CHECK(tandem::io::read_file(r.folder / "merged" / name) ==
            tandem::io::read_file(entry.path()));
    }
    const Outcome said =
        run_process(program("pig-generate"),
                    {.arguments = {"-m", r.at("merged"), "-p", "Number 7\n", "-n", "4", "-q"}});
    CHECK(said.status == 0);
  }

  TEST_CASE("an adapter of another model of the same shape: with --force, and a warning") {
    const Run r;
    REQUIRE(
        s2ft_adapter({"-m", "tiny-2m", "--adapter", r.run, "--to", "model", "-o", r.at("other")})
            .status == 0);
    const std::vector<std::string> other = {"-m", r.at("other"), "--adapter", r.run, "--verify"};
    const Outcome refused = s2ft_adapter(other);
    CHECK(refused.status == 4);
    CHECK(refused.err.find("--force of s2ft-adapter") != std::string::npos);
    auto more = other;
    more.push_back("--force");
    const Outcome forced = s2ft_adapter(more);
    CAPTURE(forced.err);
    CHECK(forced.status == 0);
    CHECK(forced.err.find("was trained on model 'tiny-2m' (fingerprint ") != std::string::npos);
    CHECK(forced.out.find("verified base") == std::string::npos);
    CHECK(forced.out.find("verified inside") != std::string::npos);
    const Outcome unlike = s2ft_adapter({"-m", "tiny-16m", "--adapter", r.run, "--force"});
    CHECK(unlike.status == 4);
    CHECK(unlike.err.find("was trained on") == std::string::npos);
  }

  TEST_CASE("what is refused, by status, and leaves nothing") {
    const Run r;
    const auto refused = [&](std::vector<std::string> arguments, int status, const char* text) {
      const Outcome run = s2ft_adapter(std::move(arguments));
      CAPTURE(run.err);
      CHECK(run.status == status);
      CHECK(run.out == "");
      CHECK(run.err.find(text) != std::string::npos);
    };
    const auto with = [&](std::vector<std::string> more) {
      std::vector<std::string> all = {"-m", "tiny-2m", "--adapter", r.run};
      all.insert(all.end(), more.begin(), more.end());
      return all;
    };
    refused({"-m", "tiny-16m", "--adapter", r.run}, 4, "was trained on model 'tiny-2m'");
    refused({"-m", "tiny-2m", "--adapter", r.at("train.jsonl")}, 4, "no such adapter folder");
    refused({"-m", "tiny-2m"}, 3, "adapter.path");
    refused(with({"--to", "model"}), 3, "output.path: names no folder");
    refused(with({"--to", "peft"}), 3, "adapter.to");
    refused(with({"--to", "model", "-o", r.run}), 2, "is there already");
    refused(with({"-o", r.at("train.jsonl")}), 2, "exists");
    refused(with({"--to", "model", "-o", r.run, "--overwrite"}), 2, "is never replaced");
    refused(with({"--to", "model", "-o", r.at("none/merged")}), 4, "cannot be created");
    refused(
        {"-m", "synthetic:llama-3.2-1b", "--adapter", r.run, "--to", "model", "-o", r.at("merged")},
        3, "a synthetic model has no folder");
    CHECK(s2ft_adapter(with({"--to", "model", "-o", r.at("merged"), "--dry-run"})).status == 0);
    CHECK(r.folder.n_files() == 2);  // the records and the run

    // A disk that fills up leaves no part of a model. The limit on file size stands for it.
    const Outcome full = run_shell(
        fmt::format("trap '' XFSZ; ulimit -f 1000; {} -m tiny-2m --adapter {} --to model -o {}",
                    program("s2ft-adapter"), r.run, r.at("merged")));
    CAPTURE(full.err);
    CHECK(full.status == 4);
    CHECK(full.err.find(": cannot write after ") != std::string::npos);
    CHECK(r.folder.n_files() == 2);
    // A damaged adapter.
    const auto tensors = r.folder / "run/adapter/s2ft_adapter.safetensors";
    std::string bytes = tandem::io::read_file(tensors);
    std::ranges::fill(bytes.end() - 3000, bytes.end() - 2000, '\xff');
    r.folder.write("run/adapter/s2ft_adapter.safetensors", bytes);
    refused(with({"--verify"}), 4, "the file is damaged: copy it again");
  }

  TEST_CASE("its recipe is valid, and --print-recipe reads back") {
    const Run r;
    const Outcome check =
        s2ft_adapter({"-r", "s2ft/merge-tiny-16m", "--adapter", r.run, "-o", r.at("m"), "--check"});
    CHECK(check.status == 0);
    CHECK(check.out + check.err == "");
    const Outcome first = s2ft_adapter({"-m", "tiny-2m", "--adapter", r.run, "--print-recipe"});
    const std::string file = r.folder.write("r.yaml", first.out).string();
    const Outcome again = s2ft_adapter({"-r", file});
    CHECK(again.status == 0);
    CHECK(again.out == s2ft_adapter({"-m", "tiny-2m", "--adapter", r.run}).out);
  }
}
