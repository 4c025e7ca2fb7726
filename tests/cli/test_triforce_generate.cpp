#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/probe.h"
#include "source_dir.h"

using namespace tandem::testing;
namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

Outcome triforce_generate(std::vector<std::string> arguments, Launch launch = {}) {
  arguments.insert(arguments.begin(), {"-r", "triforce/tiny-16m", "--device", "cpu"});
  launch.arguments = std::move(arguments);
  return run_process(program("triforce-generate"), launch);
}

Outcome plain_generate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"-m", "tiny-16m", "--device", "cpu"});
  return run_process(program("pig-generate"), {.arguments = std::move(arguments)});
}

std::string demo(const char* file) {
  return (tandem::test::source_dir() / "recipes/demo" / file).string();
}

/// The demo document, cut to its first `bytes`.
std::string document(const TemporaryFolder& folder, size_t bytes) {
  return folder.write("document.txt", file_text(demo("lighthouse-logbook.txt")).substr(0, bytes))
      .string();
}

}  // namespace

TEST_SUITE("cli/triforce-generate") {
  TEST_CASE("greedy text is pig-generate's; rounds and those within are told") {
    const TemporaryFolder folder;
    for (const std::vector<std::string>& flags :
         {std::vector<std::string>{"-p", "Once upon a time", "-n", "30"},
          {"-f", document(folder, 4000), "-n", "30"},
          {"-f", document(folder, 4000), "--questions", demo("questions.txt"), "-n", "8"}}) {
      CAPTURE(flags[0]);
      std::vector<std::string> exact = flags;
      exact.insert(exact.end(), {"-s", "model.compute=f32"});
      const Outcome run = triforce_generate(exact);
      CAPTURE(run.err);
      CHECK(run.status == 0);
      CHECK(run.out.size() > 20);
      CHECK(run.out == plain_generate(exact).out);
    }
    const Outcome run = triforce_generate(
        {"-p", "Once upon a time", "-n", "40", "-s", "model.compute=f32", "--format", "jsonl"});
    const Json summary = json_lines(run.out).back();
    const Json &spec = summary["spec"], &within = spec["within"];
    CHECK(spec["emitted"] == spec["accepted"].get<int>() + spec["rounds"].get<int>());
    CHECK(within["emitted"] == within["accepted"].get<int>() + within["rounds"].get<int>());
    CHECK(within["emitted"] >= spec["drafted"]);
    CHECK(within["accepted"] > 0);
    CHECK(spec["accepted"] > 0);
  }

  TEST_CASE("spec.within=ngram: the text is pig-generate's, no small model is loaded") {
    const TemporaryFolder folder;
    const std::vector<std::string> by_text = {"-s", "spec.within=ngram", "-s", "draft2.path=",
                                              "-s", "spec.gamma1=4",     "-s", "model.compute=f32"};
    for (const std::vector<std::string>& flags :
         {std::vector<std::string>{"-f", document(folder, 6000), "-n", "40"},
          {"-f", document(folder, 4000), "--questions", demo("questions.txt"), "-n", "12"}}) {
      std::vector<std::string> exact = flags, nested = flags;
      exact.insert(exact.end(), {"-s", "model.compute=f32"});
      nested.insert(nested.end(), by_text.begin(), by_text.end());
      const Outcome run = triforce_generate(nested);
      CAPTURE(run.err);
      CHECK(run.status == 0);
      CHECK(run.out == plain_generate(exact).out);
      nested.insert(nested.end(), {"--format", "jsonl", "-s", "sampling.temperature=0.7"});
      const Json spec = json_lines(triforce_generate(nested).out).back()["spec"];
      CHECK(spec["emitted"] == spec["accepted"].get<int>() + spec["rounds"].get<int>());
      CHECK(spec["within"]["accepted"] > 0);
      CHECK(spec["within"]["drafted"] > spec["within"]["accepted"]);
    }
    std::vector<std::string> dry = by_text;
    dry.insert(dry.end(), {"-p", "a", "--dry-run", "--format", "jsonl"});
    const Json plan = Json::parse(triforce_generate(dry).out);
    CHECK(plan["draft"] == "ngram");
    CHECK(plan["within"] == "retrieval");
    CHECK(plan["tree"]["nodes"] == 5);
    CHECK_FALSE(has(plan.dump(), "draft weights"));
    CHECK_FALSE(has(plan.dump(), "draft_cache"));
  }

  TEST_CASE("--dry-run tells what rounds are made of, and that the paper's pair fits an H200") {
    const Outcome run = run_process(
        program("triforce-generate"),
        {.arguments = {"-r", "triforce/llama2-7b-128k", "--dry-run", "-s", "run.plan_for=h200"},
         .variables = {{"CUDA_VISIBLE_DEVICES", ""}}});
    CAPTURE(run.err);
    CHECK(run.status == 0);
    CHECK(has(run.out, "  fits\n"));
    CHECK_FALSE(has(run.out, "does not fit"));
    CHECK(has(run.out, "\ninner    4 steps per speculation step, drafts of 6 tokens, at most 7\n"));
    CHECK(has(run.out,
              "\ndraft    synthetic:llama-68m, streaming in inner steps, verified by the target "
              "under retrieval\n"));
    const Json plan = Json::parse(
        triforce_generate({"-p", "a", "-s", "spec.gamma1=3", "--dry-run", "--format", "jsonl"})
            .out);
    CHECK(plan["nested"] == Json{{"rounds", 3}, {"enough", 6}, {"most", 9}});
    CHECK(plan["tree"]["nodes"] == 4);
    CHECK(plan["within"] == "retrieval");
  }

  TEST_CASE("bad input is told in a line, with what to do") {
    struct Case {
      std::vector<std::string> flags;
      int status;
      std::string says;
    };
    for (const Case& c : {
             Case{{"-s", "draft2.path="},
                  3,
                  "spec.draft.inner.path: expected the small model of inner steps, found none"},
             Case{{"-s", "draft2.path=none-such"}, 4, "none-such"},
             Case{{"-s", "spec.draft.inner={kind: ngram, path: tiny-2m}"},
                  3,
                  "spec.draft.inner: kind ngram has no key 'path'"},
             Case{{"-s", "spec.within=ngram", "-s", "draft2.path=", "-s", "spec.draft=auto"},
                  3,
                  "spec.draft.inner.kind: spec.draft auto needs a model; set model, or "
                  "spec.draft.kind=nested"},
             Case{{"-s", "spec.draft=self", "-s", "spec.within=ngram"},
                  3,
                  "spec.draft: kind self has no key 'inner'"},
             Case{{"-s", "spec.within=ngram", "-s", "draft2.path=", "-s", "tree.path=some.json"},
                  3,
                  "spec.shape.kind: spec.draft.inner is ngram, which does not propose trees"},
             Case{
                 {"-s", "spec.within=ngram", "-s", "draft2.path=", "-s",
                  "spec.verify_within=sequoia"},
                 3,
                 "spec.draft.inner_verify: this rule needs sampled draft tokens, but prompt lookup "
                 "does not sample; set match or auto"},
             Case{{"-s", "spec.within=none"}, 3, "spec.draft.inner.kind"},
             Case{{"-s", "draft2.path=synthetic:llama-68m"},
                  4,
                  "synthetic:llama-68m has 32000 tokens, tiny-16m has 8192"},
             Case{{"-s", "draft.path=tiny-2m"}, 3, "spec.draft: kind nested has no key 'path'"},
             Case{{"-s", "draft.cache.retrieval={budget: 12, chunk: 8}"},
                  3,
                  "cache.retrieval.budget: 12 tokens do not hold two chunks of 8"},
             Case{{"-s", "draft.cache.retrieval.chunk=7"},
                  3,
                  "cache.retrieval.chunk: expected a divisor of 64, found 7"},
             Case{{"-s", "draft.cache.retrieval={budget: 512, chunk: 128}"},
                  3,
                  "cache.retrieval.chunk"},
             Case{{"-s", "draft.cache.place=host"}, 3, "draft.cache.place: host is not supported"},
             Case{{"-s", "cache.place=host"},
                  6,
                  "cache.place: is host, which needs a GPU, but this run is on"},
             Case{{"-s", "run.context=64", "-s", "spec.gamma2=70"},
                  3,
                  "spec.draft.gamma2: is 70 tokens, "},
             Case{{"-s", "spec.gamma2=300"}, 3, "spec.draft.gamma2: 300 is out of range"},
             Case{{"-s", "spec.rounds=0"}, 3, "spec.draft.inner_steps: 0 is out of range"},
             Case{{"-s", "run.context=1Mi"}, 3, "run.context"},
             Case{{"-s", "tree.path=auto"},
                  3,
                  "spec.shape.kind: auto needs spec.draft model or self, found nested"},
             Case{{"-s", "tree.path=missing.json"}, 4, "missing.json"},
         }) {
      std::vector<std::string> flags = c.flags;
      flags.insert(flags.end(), {"-p", "The lamp"});
      check_refused(triforce_generate(flags), c.status, c.says);
    }
    check_refused(
        run_process(program("spec-check"), {.arguments = {"-r", "triforce/tiny-16m", "--device",
                                                          "cpu", "-s", "spec.draft=auto"}}),
        3, "spec.draft: expected the kind to check, found auto, which chooses by times");
  }

  TEST_CASE("Ctrl-C in a long run ends it within 2 s, and no file is half-written") {
    const TemporaryFolder folder;
    const fs::path file = folder / "text.txt";
    Launch launch{.signal = SIGINT};
    launch.signal_after = "memory   cpu";  // what -v tells before the weights are made
    launch.signal_at_cpu = 1.5;            // rounds take some ten seconds, all before them tenths
    const Outcome run = triforce_generate(
        {"-p", "The keeper", "-n", "3000", "-s", "run.context=4096", "-o", file.string(), "-v"},
        launch);
    CAPTURE(run.err);
    CHECK(run.status == 130);
    CHECK(run.cpu_seconds < 2);
    CHECK(has(run.err, "interrupted"));
    CHECK_FALSE(fs::exists(file));
    CHECK(fs::is_empty(folder.path()));
  }
}
