#include <doctest/doctest.h>

#include <fmt/format.h>

#include <filesystem>

#include "cli/probe.h"

using namespace tandem::testing;

namespace {

std::string adapters(const std::vector<std::filesystem::path>& paths) {
  std::string list;
  for (const auto& path : paths)
    list += fmt::format("{}{{path: {}}}", list.empty() ? "" : ", ", path.string());
  return "model.adapters=[" + list + "]";
}

Outcome generate(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"-p", "Number 7\n", "-n", "24", "-q", "--device", "cpu"});
  return run_process(program("pig-generate"), {.arguments = std::move(arguments)});
}

}  // namespace

TEST_SUITE("cli/adapters") {
  TEST_CASE("a run's adapter: text and scores are those of its model") {
    const TemporaryFolder folder;
    std::string records;
    for (int i = 0; i < 32; ++i)
      records += fmt::format("{{\"instruction\": \"Number {0}\", \"output\": \"{0} {0}\"}}\n", i);
    const std::string data = folder.write("train.jsonl", records).string();
    const auto run = folder / "run", adapter = run / "adapter";
    const Outcome trained = run_process(
        program("s2ft-train"),
        {.arguments = {"-m", "tiny-2m", "--data", data, "-s", "data.template=plain", "-s",
                       "train.steps=4", "-s", "train.batch=8", "-s", "train.optimizer.lr=2e-3",
                       "-s", "train.select.ratios={o: 0.25, d: 0.1, v: 0.5, u: 0.1}",
                       "--no-progress", "-o", run.string()}});
    CAPTURE(trained.err);
    REQUIRE(trained.status == 0);
    const auto config = nlohmann::json::parse(file_text(adapter / "s2ft_config.json"));
    CHECK(config["base_model"] == "tiny-2m");
    CHECK(config["trained_steps"] == "4");
    CHECK(config["selection"]["ratios"]["v"] == 0.5);
    CHECK(config["selection"]["seed"] == 0);

    const Outcome merged = generate({"-m", (run / "model").string()});
    const Outcome with = generate({"-m", "tiny-2m", "-s", adapters({adapter})});
    CAPTURE(with.err);
    REQUIRE(merged.status == 0);
    REQUIRE(with.status == 0);
    CHECK(with.out == merged.out);
    CHECK(with.out != generate({"-m", "tiny-2m"}).out);

    const std::string text = folder.write("numbers.txt", records).string();
    const auto perplexity = [&](std::vector<std::string> arguments) {
      arguments.insert(arguments.end(), {"--data", text, "--task", "perplexity", "--device", "cpu",
                                         "--no-progress", "--format", "md"});
      return run_process(program("pig-eval"), {.arguments = std::move(arguments)});
    };
    std::filesystem::create_directory(folder / "AddSub");
    folder.write("AddSub/test.json", R"([{"instruction": "Number 7", "answer": "7"}])");
    const auto answers = [&](std::vector<std::string> arguments) {
      const auto log = folder / "answers.jsonl";
      arguments.insert(arguments.end(), {"--task", "addsub", "--sets", folder.path().string(), "-s",
                                         "eval.sets.template=plain", "--device", "cpu",
                                         "--no-progress", "--overwrite", "-o", log.string()});
      CHECK(run_process(program("pig-eval"), {.arguments = std::move(arguments)}).status == 0);
      return json_lines(file_text(log)).at(1)["policies"]["full"]["text"].get<std::string>();
    };
    const std::string answer = answers({"-m", "tiny-2m", "-s", adapters({adapter})});
    CHECK(answer == answers({"-m", (run / "model").string()}));
    CHECK(answer != answers({"-m", "tiny-2m"}));
    const Outcome scored = perplexity({"-m", "tiny-2m", "-s", adapters({adapter})});
    CAPTURE(scored.err);
    CHECK(scored.status == 0);
    CHECK(scored.out == perplexity({"-m", (run / "model").string()}).out);
    CHECK(scored.out != perplexity({"-m", "tiny-2m"}).out);

    const Outcome planned = generate({"-m", "tiny-2m", "-s", adapters({adapter}), "--dry-run"});
    CHECK(planned.status == 0);
    const Outcome none =
        generate({"-m", "tiny-2m", "-s",
                  fmt::format("model.adapters=[{{path: {}, weight: 0}}]", adapter.string())});
    CHECK(none.out == generate({"-m", "tiny-2m"}).out);
    CHECK(generate({"-m", "tiny-2m", "-s", adapters({adapter, adapter})}).status == 0);
    const Outcome other = generate({"-m", "tiny-16m", "-s", adapters({adapter})});
    CHECK(other.status == 4);
    CHECK(other.err.find("was trained on model 'tiny-2m' (fingerprint '") != std::string::npos);
    CHECK(generate({"-m", "tiny-2m", "-s", adapters({run})}).out == with.out);
    CHECK(generate({"-m", "tiny-2m", "-s", adapters({run / "model"})}).status == 4);
  }
}
