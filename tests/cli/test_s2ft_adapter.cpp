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

/// Four steps of tiny-2m on 32 records, in folder `run`: trained once, and copied for each case.
struct Run {
  TemporaryFolder folder;
  std::string run = (folder / "run").string();

  Run() {
    std::string records;
    for (int i = 0; i < 32; ++i)
      records += fmt::format("{{\"instruction\": \"Number {0}\", \"output\": \"{0} {0}\"}}\n", i);
    folder.write("train.jsonl", records);
    static const TemporaryFolder trained;
    if (!std::filesystem::exists(trained / "run")) {
      const Outcome training = train((trained / "run").string(), {});
      CAPTURE(training.err);
      REQUIRE(training.status == 0);
    }
    std::filesystem::copy(trained / "run", run, std::filesystem::copy_options::recursive);
  }
  Outcome train(const std::string& to, const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"-m",
                                    "tiny-2m",
                                    "--data",
                                    at("train.jsonl"),
                                    "-s",
                                    "data.template=plain",
                                    "-s",
                                    "train.steps=4",
                                    "-s",
                                    "train.batch=8",
                                    "-s",
                                    "train.optimizer.lr=2e-3",
                                    "-s",
                                    "train.select.ratios={o: 0.25, d: 0.1, v: 0.5, u: 0.1}",
                                    "--no-progress",
                                    "-o",
                                    to};
    all.insert(all.end(), more.begin(), more.end());
    return run_process(program("s2ft-train"), {.arguments = all});
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
    CHECK(has(text.out, "ratios.v 0.5"));
    const Outcome run =
        s2ft_adapter({"-m", "tiny-2m", "--adapter", r.at("run/adapter"), "--json", "--verify"});
    REQUIRE(run.status == 0);
    const Json all = Json::parse(run.out);
    CHECK(all["verified"] == true);
    REQUIRE(all["adapters"].size() == 1);
    const Json json = all["adapters"][0];
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
    CHECK(merged.out.find(fmt::format("verified inside    {} weights equal the adapter's values",
                                      values)) != std::string::npos);
    CHECK(merged.out.find("\nmodel    " + r.at("merged") + "\n") != std::string::npos);
    // The run's own model, file by file, but for the prompt of its data.
    for (const auto& entry : std::filesystem::directory_iterator(r.folder / "run" / "model")) {
      const std::string name = entry.path().filename().string();
      if (name == "prompt.txt") continue;
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
    CHECK(refused.err.find("s2ft-adapter --force") != std::string::npos);
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
    refused({"-m", "tiny-2m"}, 3, "adapter.adapters: is empty");
    refused(with({"--to", "model"}), 3, "output.path: expected a folder");
    refused(with({"--to", "gguf"}), 3, "adapter.to");
    refused(with({"--to", "model", "-o", r.at("train.jsonl")}), 2, "already exists");
    refused(with({"-o", r.at("train.jsonl")}), 2, "exists");
    // Nothing that is read is written over.
    for (const char* file : {"run/adapter/s2ft_config.json", "run/adapter/new.txt"})
      refused(with({"-o", r.at(file), "--overwrite"}), 2, "expected a folder outside the inputs");
    refused(with({"--to", "s2ft", "-o", r.run}), 2,
            "expected a new folder, found an input adapter");
    refused(with({"--to", "lora", "--rank", "1000", "-o", r.at("merged")}), 4,
            "no changed matrix has a rank above ");
    refused(with({"--to", "model", "-o", r.run, "--overwrite"}), 2, "is not supported");
    refused(with({"--to", "model", "-o", r.at("none/merged")}), 4, "cannot create the folder");
    refused(
        {"-m", "synthetic:llama-3.2-1b", "--adapter", r.run, "--to", "model", "-o", r.at("merged")},
        3, "found a synthetic model");
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
    refused(with({"--verify"}), 4, "is damaged: bytes ");
  }

  TEST_CASE("several adapters: overlaps, one adapter of slices, factors, a model; verified") {
    const Run r;
    const Outcome second = r.train(r.at("second"), {"-s", "run.seed=1"});
    REQUIRE(second.status == 0);
    const auto with = [&](std::vector<std::string> more) {
      std::vector<std::string> all = {
          "-m", "tiny-2m", "--adapter", r.run, "--adapter", r.at("second") + "=0.7", "--verify"};
      all.insert(all.end(), more.begin(), more.end());
      return s2ft_adapter(all);
    };
    const Outcome said = with({"--json"});
    CAPTURE(said.err);
    REQUIRE(said.status == 0);
    const Json json = Json::parse(said.out);
    CHECK(json["adapters"][0]["weight"] == 1);
    CHECK(json["adapters"][1]["weight"] == 0.7);
    REQUIRE(json["overlaps"].size() > 0);
    const std::string csv = with({"--format", "csv"}).out;
    CHECK(csv.starts_with("adapter,matrix,matrices,change_norm,base_norm,units\n" + r.run));
    CHECK(has(csv, "\n\nadapters,matrix,units\n\"[0,1]\","));
    CHECK(has(with({"--format", "md"}).out, "\n\n| matrix | matrices | units "));
    CHECK(json["overlaps"][0]["adapters"] == Json{0, 1});
    const Outcome table = with({});
    CHECK(table.out.find("shared  units") != std::string::npos);
    CHECK(table.out.find("verified sums ") != std::string::npos);
    const Outcome exclusive = with({"-s", "adapter.exclusive=true"});
    CHECK(exclusive.status == 4);
    CHECK(exclusive.err.find("the first of ") != std::string::npos);

    // The same model by three ways.
    const Outcome fused = with({"--to", "s2ft", "-o", r.at("fused")});
    CAPTURE(fused.err);
    REQUIRE(fused.status == 0);
    CHECK(fused.out.find("bit for bit") != std::string::npos);
    REQUIRE(with({"--to", "model", "-o", r.at("merged")}).status == 0);
    REQUIRE(s2ft_adapter({"-m", "tiny-2m", "--adapter", r.at("fused"), "--to", "model", "-o",
                          r.at("merged-2")})
                .status == 0);
    CHECK(tandem::io::read_file(r.at("merged/model.safetensors")) ==
          tandem::io::read_file(r.at("merged-2/model.safetensors")));
    const Outcome peft = with({"--to", "lora", "-o", r.at("peft"), "--json"});
    CAPTURE(peft.err);
    REQUIRE(peft.status == 0);
    CHECK(Json::parse(peft.out)["error"] == 0);
    CHECK(s2ft_adapter({"-m", "tiny-2m", "--adapter", r.at("peft"), "--verify"}).status == 0);
    const Outcome shorter = with({"--to", "lora", "--rank", "3", "-o", r.at("short"), "--json"});
    CAPTURE(shorter.err);
    REQUIRE(shorter.status == 0);
    const double error = Json::parse(shorter.out)["error"];
    CHECK(error > 0.01);
    CHECK(error < 1);
    const size_t files = r.folder.n_files();
    const Outcome lossy = with({"--to", "lora", "--rank", "3", "-s",
                                fmt::format("adapter.max_error={}", error / 2), "-o", r.at("no")});
    CHECK(lossy.status == 7);
    CHECK(lossy.err.find("adapter.max_error: factors of rank 3 lose ") != std::string::npos);
    CHECK(r.folder.n_files() == files);
    // Factors added to slices: only a folder of PEFT or a model holds them.
    const auto mixed = [&](const char* form, const char* to) {
      return s2ft_adapter({"-m", "tiny-2m", "--adapter", r.run, "--adapter", r.at("short") + "=-1",
                           "--to", form, "-o", r.at(to), "--verify"});
    };
    CHECK(mixed("lora", "mixed").status == 0);
    const Outcome slices = mixed("s2ft", "no");
    CHECK(slices.status == 4);
    CHECK(slices.err.find("add --to lora") != std::string::npos);
  }

  TEST_CASE("an adapter out of a tuned model: the one that it was merged from") {
    const Run r;
    const auto take = [&](const std::string& from, std::vector<std::string> more) {
      std::vector<std::string> all = {"-m", "tiny-2m", "--tuned", from};
      all.insert(all.end(), more.begin(), more.end());
      return s2ft_adapter(all);
    };
    REQUIRE(s2ft_adapter({"-m", "tiny-2m", "--adapter", r.run, "--to", "model", "-s",
                          "output.weights=f32", "-o", r.at("merged")})
                .status == 0);
    const Outcome taken = take(r.at("merged"), {"--to", "s2ft", "-o", r.at("taken"), "--verify"});
    CAPTURE(taken.err);
    REQUIRE(taken.status == 0);
    const auto figures = [&](const std::string& adapter) {
      const Outcome said = s2ft_adapter({"-m", "tiny-2m", "--adapter", adapter, "--json"});
      REQUIRE(said.status == 0);
      return Json::parse(said.out)["adapters"][0]["matrices"];
    };
    CHECK(figures(r.at("taken")) == figures(r.run));
    REQUIRE(s2ft_adapter({"-m", "tiny-2m", "--adapter", r.at("taken"), "--to", "model", "-s",
                          "output.weights=f32", "-o", r.at("again")})
                .status == 0);
    CHECK(tandem::io::read_file(r.at("merged/model.safetensors")) ==
          tandem::io::read_file(r.at("again/model.safetensors")));
    CHECK(take(r.at("merged"), {}).out.find("\nchosen   strategy extracted") != std::string::npos);
    CHECK(take(r.at("merged"), {"--to", "lora", "-o", r.at("peft"), "--verify"}).status == 0);
    const Outcome unchanged = take("tiny-2m", {});
    CHECK(unchanged.status == 4);
    CHECK(unchanged.err.find("there is no change to extract") != std::string::npos);
    CHECK(take("tiny-16m", {}).err.find("tiny-2m has ") != std::string::npos);
    CHECK(take(r.at("merged"), {"--adapter", r.run}).status == 3);
    CHECK(take(r.at("none"), {}).status == 4);
    CHECK(take(r.at("merged"), {"--to", "s2ft", "-o", r.at("merged/inner")})
              .err.find("expected a folder outside the inputs") != std::string::npos);
    CHECK(take(r.at("merged"), {"--to", "s2ft", "-o", r.run}).status == 2);
  }

  TEST_CASE("--ranks: the loss of each rank, as a folder of that rank has it") {
    const Run r;
    const auto with = [&](std::vector<std::string> more) {
      std::vector<std::string> all = {"-m", "tiny-2m", "--adapter", r.run};
      all.insert(all.end(), more.begin(), more.end());
      return s2ft_adapter(all);
    };
    const Outcome table = with({"--ranks", "1,8", "--ranks", "3,64"});
    CAPTURE(table.out);
    REQUIRE(table.status == 0);
    CHECK(table.out.find("exact    at rank ") == 0);
    const Json json = Json::parse(with({"--ranks", "1,8,3,64", "--json"}).out);
    REQUIRE(json["ranks"].size() == 4);
    for (const Json& of : json["ranks"]) {
      const int rank = of["rank"];
      CAPTURE(rank);
      const std::string folder = fmt::format("of-{}", rank);
      const Outcome written = with({"--to", rank == 3 ? "peft" : "lora", "--rank",
                                    std::to_string(rank), "-o", r.at(folder.c_str()), "--json"});
      CAPTURE(written.err);
      REQUIRE(written.status == 0);
      const double error = Json::parse(written.out)["error"];
      CHECK(of["error"].get<double>() == doctest::Approx(error).epsilon(1e-9));
      CHECK(has(table.out, fmt::format("{:.3g} %", 100 * error)));
      const Json summary = Json::parse(
          s2ft_adapter({"-m", "tiny-2m", "--adapter", r.at(folder.c_str()), "--json"}).out);
      CHECK(of["values"] == summary["adapters"][0]["values"]);
    }
    CHECK(json["ranks"][0]["error"] > json["ranks"][2]["error"]);
    const std::string csv = with({"--ranks", "1,8,3,64", "--format", "csv"}).out;
    CHECK(csv.starts_with(
        fmt::format("rank,error,values\n1,{:.9g},", json["ranks"][0]["error"].get<double>())));
    CHECK(std::ranges::count(csv, '\n') == 5);
    CHECK(has(with({"--ranks", "8", "--format", "md"}).out, "\n\n| rank | relative loss |"));
    CHECK(Json::parse(with({"--ranks", "1,8,3,64", "--format", "jsonl"}).out) == json);
    check_refused(with({"--to", "lora", "-o", r.at("no"), "--format", "csv"}), 2,
                  "--format: expected text, json or jsonl with --to lora, which prints no table\n");
    for (const char* bad : {"0", "8,", "8,x", ",", "1.5"}) {
      CAPTURE(bad);
      CHECK(with({"--ranks", bad}).status == 3);
    }
    CHECK(has(with({"--ranks", "8", "--to", "lora", "-o", r.at("no")}).err, "leave out --to"));
  }

  TEST_CASE("adapters on the command line: a number after the last '=' is the weight") {
    const Run r;
    const auto weights = [&](std::vector<std::string> adapters) {
      std::vector<std::string> all = {"-m", "tiny-2m", "--dry-run"};
      for (const std::string& a : adapters) all.insert(all.end(), {"--adapter", a});
      return s2ft_adapter(all);
    };
    CHECK(weights({r.run + "=-0.25"}).out.find("  weight -0.25\n") != std::string::npos);
    CHECK(weights({r.run + "=1e-3", r.run}).out.find("  weight 0.001\n") != std::string::npos);
    std::filesystem::create_directory_symlink(r.run, r.folder / "a=b");
    CHECK(weights({r.at("a=b")}).status == 0);
    CHECK(weights({r.at("a=b=2")}).out.find("a=b/adapter  weight 2\n") != std::string::npos);
    for (const char* weight : {"=nan", "=inf", "=-inf", "=1e99", "=2000000"}) {
      CAPTURE(weight);
      const Outcome bad = weights({r.run + weight});
      CHECK(bad.status == 3);
      CHECK(bad.err.find("weight") != std::string::npos);
    }
    CHECK(weights({"=0.5"}).status == 3);
    CHECK(weights({r.at("none=0.5")}).status == 4);
    const auto with = [&](std::vector<std::string> more) {
      std::vector<std::string> all = {"-m", "tiny-2m", "--adapter", r.run};
      all.insert(all.end(), more.begin(), more.end());
      return s2ft_adapter(all);
    };
    CHECK(with({"--rank", "4"}).err.find("adapter.rank: needs adapter.to lora") !=
          std::string::npos);
    CHECK(with({"--to", "lora", "-s", "adapter.max_error=0.1", "-o", r.at("x")}).status == 3);
    CHECK(with({"--to", "lora"}).err.find("expected a folder for the adapter") !=
          std::string::npos);
    const Outcome zero =
        s2ft_adapter({"-m", "tiny-2m", "--adapter", r.run + "=0", "--to", "lora", "-o", r.at("x")});
    CHECK(zero.status == 4);
    CHECK(zero.err.find("changes nothing") != std::string::npos);
    CHECK(with({"--to", "s2ft", "-o", r.at("run/adapter/x")}).status == 2);
    CHECK(!std::filesystem::exists(r.folder / "x"));
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
