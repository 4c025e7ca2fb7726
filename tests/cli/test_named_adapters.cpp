// Adapters that prompts name: mixed in a batch, switched in the weights, merged where one serves
// all.
#include <doctest/doctest.h>

#include <fmt/format.h>

#include "adapter_case.h"
#include "cli/probe.h"
#include "source_dir.h"

using namespace tandem::testing;
using tandem::model::Role;

namespace {

/// Two adapters of tiny-2m, and prompts for both and for neither.
struct Case {
  TemporaryFolder folder;
  std::string list;

  Case() {
    const auto model = tandem::test::source_dir() / "recipes/models/tiny-2m";
    const auto slices = tandem::test::write_slices(folder / "slices", model, {.seed = 1});
    const auto factors = tandem::test::write_factors(folder / "factors", model, {.seed = 2});
    list = fmt::format("[{{name: s, path: {}}}, {{name: f, path: {}}}]", slices.string(),
                       factors.string());
    folder.write("prompts.jsonl",
                 "{\"prompt\": \"Number 7\\n\", \"adapter\": \"s\"}\n"
                 "{\"prompt\": \"Number 7\\n\"}\n"
                 "{\"prompt\": \"Number 7\\n\", \"adapter\": \"f\"}\n"
                 "{\"prompt\": \"Number 8\\n\", \"adapter\": \"s\"}\n");
    folder.write("one.jsonl", "{\"prompt\": \"Number 7\\n\", \"adapter\": \"f\"}\n");
  }
  Outcome run(const std::string& prompts, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"-m",        "tiny-2m",
                                          "--prompts", (folder / prompts).string(),
                                          "-n",        "16",
                                          "--device",  "cpu",
                                          "-s",        "model.compute=f32",
                                          "-s",        "model.adapters=" + list};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_process(program("pig-generate"), {.arguments = std::move(arguments)});
  }
  /// The text after a prompt with an adapter in the weights.
  std::string merged(const char* name, const std::string& prompt) const {
    std::vector<std::string> arguments = {
        "-m", "tiny-2m",          "-p", prompt, "-n", "16", "-q", "--device", "cpu",
        "-s", "model.compute=f32"};
    if (name != nullptr)
      arguments.insert(arguments.end(), {"-s", fmt::format("model.adapters=[{{path: {}}}]",
                                                           (folder / name).string())});
    const Outcome o = run_process(program("pig-generate"), {.arguments = std::move(arguments)});
    CHECK(o.status == 0);
    return o.out;
  }
};

}  // namespace

TEST_SUITE("cli/named_adapters") {
  TEST_CASE("speculation drafts for a model with the adapter that all prompts name") {
    const Case c;
    const std::vector<std::string> ngram = {"-s", "spec.draft=ngram", "-q"};
    CHECK(c.run("one.jsonl", ngram).out == c.merged("factors", "Number 7\n"));
    check_refused(c.run("prompts.jsonl", ngram), 3,
                  "model.adapters: speculation does not support several named adapters in one run");
  }

  TEST_CASE("prompts name theirs: mixed and switched texts are those of merged adapters") {
    const Case c;
    std::string want;
    const std::pair<const char*, const char*> all[] = {{"slices", "Number 7\n"},
                                                       {nullptr, "Number 7\n"},
                                                       {"factors", "Number 7\n"},
                                                       {"slices", "Number 8\n"}};
    for (size_t i = 0; i < 4; ++i)
      want += fmt::format("[{}]\n{}\n", i, c.merged(all[i].first, all[i].second));
    const Outcome mixed = c.run("prompts.jsonl");
    CAPTURE(mixed.err);
    REQUIRE(mixed.status == 0);
    CHECK(mixed.out == want);
    CHECK(mixed.err.find("adapters 2, next to the weights") != std::string::npos);
    const Outcome switched = c.run("prompts.jsonl", {"-s", "run.adapters=switch"});
    REQUIRE(switched.status == 0);
    CHECK(switched.out == want);
    CHECK(switched.err.find("adapters 2, 3 switches in ") != std::string::npos);
    const Outcome one = c.run("one.jsonl", {"-q"});  // merged
    CHECK(one.out == c.merged("factors", "Number 7\n"));
  }

  TEST_CASE("the plan lists adapters and bytes") {
    const Case c;
    for (const char* use : {"mix", "switch"}) {
      const Outcome o = c.run("prompts.jsonl", {"-s", std::string("run.adapters=") + use,
                                                "--dry-run", "--format", "jsonl"});
      CAPTURE(o.err);
      REQUIRE(o.status == 0);
      const auto plan = nlohmann::json::parse(o.out);
      CHECK(plan["adapters"]["use"] == use);
      CHECK(plan["adapters"]["names"] == nlohmann::json({"s", "f"}));
      CHECK(plan["adapters"]["bytes"].size() >= 1);
      CHECK(plan["memory"]["cpu"].contains("adapters"));
    }
    CHECK(c.run("prompts.jsonl", {"--dry-run"}).out.find("adapters 2, next to the weights") !=
          std::string::npos);
  }

  TEST_CASE("names that do not go together are told in one line") {
    const Case c;
    c.folder.write("wrong.jsonl", "{\"prompt\": \"a\", \"adapter\": \"t\"}\n");
    c.folder.write("plain.jsonl", "{\"prompt\": \"a\"}\n");
    c.folder.write("number.jsonl", "{\"prompt\": \"a\", \"adapter\": 1}\n");
    const Outcome wrong = c.run("wrong.jsonl");
    CHECK(wrong.status == 4);
    CHECK(wrong.err.find(
              "wrong.jsonl:1: names adapter 't', which model.adapters does not list\n  hint: ") !=
          std::string::npos);
    CHECK(c.run("number.jsonl").status == 4);
    const auto with = [&](const std::string& list) {
      Case other;
      other.list = list;
      return other.run("one.jsonl");
    };
    const std::string path = (c.folder / "slices").string();
    const Outcome twice =
        with(fmt::format("[{{name: f, path: {0}}}, {{name: f, path: {0}}}]", path));
    CHECK(twice.status == 3);
    CHECK(twice.err.find("two adapters are called 'f'") != std::string::npos);
    CHECK(with("[]").status == 4);
    const Outcome merged =
        c.run("plain.jsonl", {"-s", "model.adapters=[]", "-s", "run.adapters=mix"});
    CHECK(merged.status == 3);
    // Tools whose prompts name nothing.
    const Outcome bench = run_process(
        program("pig-bench"), {.arguments = {"-m", "tiny-2m", "-s", "model.adapters=" + c.list,
                                             "--device", "cpu", "-s", "run.context=16"}});
    CHECK(bench.status != 0);
    CHECK(bench.err.find("has a name, but this tool has no prompts") != std::string::npos);
  }
}
