#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/probe.h"

using namespace tandem::testing;
using Json = nlohmann::json;

namespace {

Outcome sequoia_generate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"-r", "sequoia/tiny-16m", "--device", "cpu"});
  return run_process(TANDEM_SEQUOIA_GENERATE, {.arguments = std::move(arguments)});
}

std::vector<Json> lines(const std::string& text) {
  std::vector<Json> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) all.push_back(Json::parse(line));
  return all;
}

}  // namespace

TEST_SUITE("cli/sequoia-generate") {
  TEST_CASE("greedy text is pig-generate's; rounds and their sum are told") {
    const std::vector<std::string> flags = {"-p", "Once upon a time", "-n", "30", "-s",
                                            "model.compute=f32"};
    std::vector<std::string> plain_flags = {"-m", "tiny-16m", "--device", "cpu"};
    plain_flags.insert(plain_flags.end(), flags.begin(), flags.end());
    const Outcome plain = run_process(TANDEM_PIG_GENERATE, {.arguments = plain_flags});
    const Outcome run = sequoia_generate(flags);
    CHECK(run.status == 0);
    CHECK(run.out == plain.out);
    CHECK(run.err.find("tokens each; drafting") != std::string::npos);

    std::vector<std::string> json_flags = flags;
    json_flags.insert(json_flags.end(), {"--format", "jsonl"});
    const std::vector<Json> events = lines(sequoia_generate(json_flags).out);
    int64_t rounds = 0, drafted = 0, accepted = 0, tokens = 0;
    for (const Json& e : events) {
      if (e["event"] == "token") ++tokens;
      if (e["event"] != "round") continue;
      ++rounds;
      drafted += e["drafted"].get<int64_t>();
      accepted += e["accepted"].get<int64_t>();
    }
    const Json& summary = events.back();
    CHECK(tokens == 30);
    CHECK(drafted == 7 * rounds);
    CHECK(summary["spec"]["rounds"] == rounds);
    CHECK(summary["spec"]["accepted"] == accepted);
    CHECK(summary["decode_steps"] == rounds);
    CHECK(summary["spec"]["mean_tokens_per_round"].get<double>() ==
          doctest::Approx(1 + double(accepted) / double(rounds)));
    CHECK(summary["peak_bytes"].get<double>() <= 1.05 * summary["planned_peak_bytes"].get<double>());
  }

  TEST_CASE("ngram needs no second model") {
    const std::vector<std::string> flags = {"-m", "tiny-16m", "-p", "tick tock tick tock tick", "-n",
                                            "24", "--device", "cpu", "-s", "model.compute=f32"};
    std::vector<std::string> with = flags;
    with.insert(with.end(), {"-s", "spec.draft=ngram"});
    const Outcome run = run_process(TANDEM_SEQUOIA_GENERATE, {.arguments = with});
    CHECK(run.status == 0);
    CHECK(run.out == run_process(TANDEM_PIG_GENERATE, {.arguments = flags}).out);
    const Outcome without = run_process(TANDEM_SEQUOIA_GENERATE, {.arguments = flags});
    CHECK(without.status == 3);
    CHECK(without.err.find("draft.path: name the model that proposes tokens") != std::string::npos);
    CHECK(without.err.find("tree.path: name a tree") != std::string::npos);
  }

  TEST_CASE("--dry-run tells the memory of both models") {
    const Outcome run = sequoia_generate({"--dry-run", "-s", "run.context=256"});
    CHECK(run.status == 0);
    CHECK(run.out.find("tree     8 nodes on") != std::string::npos);
    CHECK(run.out.find("draft weights") != std::string::npos);
    const Outcome small = sequoia_generate(
        {"--dry-run", "-s", "run.context=256", "-s", "run.host_memory_limit=64MiB"});
    CHECK(small.status == 5);
    CHECK(small.out.find("does not fit") != std::string::npos);
  }

  TEST_CASE("what does not go together") {
    const TemporaryFolder folder;
    struct Case {
      std::vector<std::string> flags;
      int status;
      std::string says;
    };
    const std::string no_tree = folder.write("tree.json", R"({"format": "sequoia-tree/1"})").string();
    const std::vector<std::string> prompt = {"-p", "a"};
    for (const Case& c : {
             Case{{}, 2, "nothing to continue"},
             Case{{"-s", "draft.path=synthetic:llama-68m"}, 4,
                  "draft.path: synthetic:llama-68m has 32000 tokens, tiny-16m has 8192"},
             Case{{"-s", "tree.path=" + no_tree}, 4, "tree.json"},
             Case{{"-s", "tree.path=missing.json"}, 4, "missing.json"},
             Case{{"-s", "output.top_logprobs=2"}, 3, "speculation reports no alternatives"},
             Case{{"-s", "sampling.max_tokens=0"}, 3, "nothing to speculate on"},
             Case{{"-s", "output.state=s"}, 3, "states are saved by pig-generate"},
         }) {
      CAPTURE(c.says);
      std::vector<std::string> flags = c.flags;
      if (!c.flags.empty()) flags.insert(flags.end(), prompt.begin(), prompt.end());
      const Outcome run = sequoia_generate(flags);
      CHECK(run.status == c.status);
      CHECK(run.out.empty());
      CHECK(run.err.find(c.says) != std::string::npos);
    }
  }
}
