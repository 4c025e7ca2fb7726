// Files of runs that several ranks share: saved states, and adapters.
#include <fstream>

#include "adapter_case.h"
#include "cli/rank_runs.h"
#include "io/file.h"
#include "io/json.h"
#include "source_dir.h"

using namespace tandem::testing;

namespace {

/// Makes a folder of tiny-16m with a window of 24 tokens in two of three layers.
std::string with_windows(const std::filesystem::path& folder) {
  const auto base = tandem::test::source_dir() / "recipes/models/tiny-16m";
  std::filesystem::copy(base, folder);
  auto config = tandem::io::parse_json(tandem::io::read_file(base / "config.json"), "config.json");
  config["architectures"] = {"MistralForCausalLM"};
  config["sliding_window"] = 24;
  for (int i = 0; i < config["num_hidden_layers"]; ++i)
    config["layer_types"].push_back(i % 3 == 1 ? "full_attention" : "sliding_attention");
  std::ofstream(folder / "config.json") << config.dump();
  return folder.string();
}

}  // namespace

TEST_SUITE("cli/rank_files") {
  TEST_CASE("a state is written whole, and read by any number of ranks") {
    const TemporaryFolder folder;
    struct Case {
      std::string model, kind;
    };
    const auto document = tandem::test::source_dir() / "recipes/demo/lighthouse-logbook.txt";
    const auto beginning = folder.write("text", tandem::io::read_file(document).substr(0, 1500));
    const std::string windowed = with_windows(folder / "windowed");
    for (const auto& [model, kind] :
         {Case{"tiny-16m", "full"}, {"tiny-16m", "snapkv"}, {windowed, "full"}}) {
      CAPTURE(model);
      CAPTURE(kind);
      const Words how = {"-m",  model, "-s", "model.compute=f32", "-s", "run.threads=1", "--device",
                         "cpu", "-q",  "-s", "cache.kind=" + kind};
      const Words next = how + Words{"-p", " It was", "-n", "12"};
      const auto state = [&](int ranks) {
        return (folder / fmt::format("{}-{}-{}", model == windowed, kind, ranks)).string();
      };
      std::vector<std::string> texts;
      for (const int size : {1, 2, 3}) {
        const auto saved = run_ranks(size, how + Words{"-f", beginning.string(), "-n", "0", "-s",
                                                       "output.state=" + state(size)});
        CAPTURE(saved[0].err);
        REQUIRE(saved[0].status == 0);
      }
      // Files of one layout: a reader need not be tried with every writer.
      for (const int size : {2, 3})
        CHECK(std::filesystem::file_size(state(size)) == std::filesystem::file_size(state(1)));
      for (const auto& [from, size] : {std::pair{1, 1}, {2, 1}, {3, 1}, {1, 2}, {2, 3}}) {
        CAPTURE(from);
        CAPTURE(size);
        const auto read = run_ranks(size, next + Words{"-s", "model.state=" + state(from)});
        CAPTURE(read[0].err);
        CHECK(read[0].status == 0);
        texts.push_back(read[0].out);
      }
      CHECK(texts.front().size() > 20);
      for (const std::string& text : texts) CHECK(text == texts.front());
    }
  }

  TEST_CASE("saving a state takes no memory that the plan lacks, on any rank") {
    const TemporaryFolder folder;
    const auto document = tandem::test::source_dir() / "recipes/demo/lighthouse-logbook.txt";
    const Words words = {"-m",       "tiny-16m", "-f",       document.string(),
                         "-n",       "0",        "-s",       "run.threads=1",
                         "--device", "cpu",      "--format", "jsonl"};
    const auto state = folder / "state";
    const auto saved = run_ranks(2, words + Words{"-s", "output.state=" + state.string()});
    CAPTURE(saved[0].err);
    REQUIRE(saved[0].status == 0);
    const auto summary = tandem::io::Json::parse(
        saved[0].out.substr(saved[0].out.rfind('\n', saved[0].out.size() - 2) + 1));
    const double peak = summary["peak_bytes"].get<double>();
    CAPTURE(peak);
    CHECK(peak < 1.05 * summary["planned_peak_bytes"].get<double>());
    // As much again, had it been joined in memory.
    CHECK(static_cast<double>(std::filesystem::file_size(state)) > 0.2 * peak);
  }

  TEST_CASE("adapters with names: mixed, switched, and merged where all name one") {
    const TemporaryFolder folder;
    const auto model = tandem::test::source_dir() / "recipes/models/tiny-16m";
    using tandem::model::Role;
    const auto slices = tandem::test::write_slices(
        folder / "slices", model,
        {.seed = 1, .weights = {Role::q, Role::k, Role::o, Role::up, Role::down}});
    const auto factors = tandem::test::write_factors(folder / "factors", model, {.seed = 2});
    const std::string list =
        fmt::format("model.adapters=[{{name: s, path: {}}}, {{name: f, path: {}}}]",
                    slices.string(), factors.string());
    folder.write("mixed.jsonl",
                 "{\"prompt\": \"Number 7\", \"adapter\": \"s\"}\n{\"prompt\": \"Number 7\"}\n"
                 "{\"prompt\": \"Number 7\", \"adapter\": \"f\"}\n");
    folder.write("one.jsonl", "{\"prompt\": \"Number 7\", \"adapter\": \"s\"}\n");
    for (const Words& how : std::vector<Words>{{"mixed.jsonl", "run.adapters=mix"},
                                               {"mixed.jsonl", "run.adapters=switch"},
                                               {"one.jsonl", "run.adapters=auto"}}) {
      CAPTURE(how[1]);
      const Words words = {"-m",        "tiny-16m",
                           "--prompts", (folder / how[0]).string(),
                           "-n",        "16",
                           "--device",  "cpu",
                           "-s",        "model.compute=f32",
                           "-s",        "run.threads=1",
                           "-s",        list,
                           "-s",        how[1],
                           "-q"};
      const Outcome one = run_process(program("pig-generate"), {.arguments = words});
      REQUIRE(one.status == 0);
      for (const int size : {2, 3}) {
        const auto all = run_ranks(size, words);
        CAPTURE(all[0].err);
        CHECK(all[0].out == one.out);
      }
    }
  }
}
