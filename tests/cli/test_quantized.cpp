#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "cli/rank_runs.h"
#include "io/file.h"

using namespace tandem::testing;

namespace {

Outcome run(const char* tool, const Words& words) { return command(tool + words + "--device cpu"); }

/// A run in f32, where texts do not hang on how rows are grouped.
Words words_of(const std::string& weights) {
  return {"-m",
          "tiny-16m",
          "-p",
          "The lamp was lit",
          "-n",
          "40",
          "-q",
          "-s",
          "model.compute=f32",
          "-s",
          "run.seed=3",
          "-s",
          "run.threads=2",
          "-s",
          "model.weights=" + weights};
}

}  // namespace

TEST_SUITE("cli/quantized") {
  TEST_CASE("drafts of a model with quantized weights write its own text") {
    for (const char* weights : {"int8", "int4", "fp8"})
      for (const std::string activations : {"int8", "compute"}) {
        if (weights == std::string("fp8") && activations == "int8") continue;  // refused
        const Words words = words_of(weights) + Words{"-s", "model.activations=" + activations};
        const Outcome plain = run("pig-generate", words);
        REQUIRE(plain.status == 0);
        CHECK(plain.out.size() > 40);
        CAPTURE(weights);
        CAPTURE(activations);
        for (const Words& draft :
             {Words{"-s", "spec.draft=ngram"},
              {"-s", "spec.draft=model", "-s", "draft.path=tiny-2m"},
              {"-s", "spec.draft=model", "-s", "draft.path=tiny-2m", "-s", "draft.weights=int4"},
              {"-s", "spec.draft=model", "-s", "draft.path=tiny-2m", "-s", "spec.width=3"},
              {"-s", "spec.draft=self", "-s", "draft.cache.kind=snapkv", "-s",
               "draft.cache.snapkv.budget=40", "-s", "spec.force=true"},
              {"-s", "spec.draft=self", "-s", "draft.weights=int4", "-s", "spec.force=true"}}) {
          const Outcome drafted = run("sequoia-generate", words + draft);
          CAPTURE(drafted.err);
          CHECK(drafted.out == plain.out);
        }
      }
  }

  TEST_CASE("a quantized copy drafts for the model without changing its text") {
    const Words words = words_of("auto");
    const Outcome plain = run("pig-generate", words);
    REQUIRE(plain.status == 0);
    for (const char* weights : {"int8", "int4", "fp8"}) {
      const Outcome drafted = run(
          "sequoia-generate",
          words + Words{"-s", "spec.draft=self", "-s", std::string("draft.weights=") + weights});
      CAPTURE(drafted.err);
      CHECK(drafted.out == plain.out);
    }
  }

  TEST_CASE("quantized weights do not depend on threads, and ranks write their text") {
    for (const char* weights : {"int4", "fp8"}) {
      const Words words = words_of(weights);
      const Outcome two = run("pig-generate", words);
      const Outcome one = run("pig-generate", words + Words{"-s", "run.threads=1"});
      CHECK(one.out == two.out);
      const auto ranks = run_ranks(2, words + Words{"--device", "cpu", "-s", "run.threads=1"});
      CAPTURE(ranks[0].err);
      CHECK(ranks[0].out == two.out);
    }
  }

  TEST_CASE(
      "a folder written in int8 or int4 has the text of the model quantized as it is loaded") {
    const TemporaryFolder folder;
    for (const std::string weights : {"int8", "int4", "fp8"}) {
      CAPTURE(weights);
      const std::string model = (folder / weights).string(),
                        plain = (folder / ("from-" + weights)).string();
      const Outcome written = run_process(
          program("s2ft-adapter"), {.arguments = {"-m", "tiny-16m", "--to", "model", "--weights",
                                                  weights, "--verify", "-o", model}});
      CAPTURE(written.err);
      REQUIRE(written.status == 0);
      CHECK(has(written.out, "verified file "));
      const Words words = {"-p", "The lamp was lit", "-n", "40", "-q", "-s", "model.compute=f32"};
      const Outcome want = run("pig-generate",
                               words + Words{"-m", "tiny-16m", "-s", "model.weights=" + weights}),
                    found = run("pig-generate", words + Words{"-m", model});
      CAPTURE(found.err);
      CHECK(found.out.size() > 40);
      // The head in fp8 is exempt: folders hold it in bf16 where it is tied to the embedding.
      if (weights != "fp8") CHECK(found.out == want.out);
      const auto ranks = run_ranks(2, words + Words{"-m", model, "--device", "cpu"});
      CAPTURE(ranks[0].err);
      CHECK(ranks[0].out == found.out);
      CHECK(run("sequoia-generate", words + Words{"-m", model, "-s", "spec.draft=ngram"}).out ==
            found.out);
      // Weights that are written as numbers leave no word of the quantization.
      REQUIRE(run_process(program("s2ft-adapter"),
                          {.arguments = {"-m", model, "--to", "model", "--verify", "-o", plain}})
                  .status == 0);
      CHECK_FALSE(has(tandem::io::read_file(plain + "/config.json"), "quantization_config"));
      const Outcome again =
          run("pig-generate", words + Words{"-m", model, "-s", "model.weights=int8"});
      CHECK(again.status == 3);
      CHECK(has(again.err, "quantized already"));
    }
  }

  TEST_CASE("plans count quantized weights, and name their formats") {
    const Outcome f = run("pig-generate",
                          {"-m", "tiny-16m", "-p", "x", "--dry-run", "--format", "jsonl"}),
                  q = run("pig-generate", {"-m", "tiny-16m", "-p", "x", "--dry-run", "--format",
                                           "jsonl", "-s", "model.weights=int4"});
    const auto full = nlohmann::json::parse(f.out), int4 = nlohmann::json::parse(q.out);
    CHECK(full["weights"] == "bf16");
    CHECK(int4["weights"] == "i4 g64 f16 integer, i8 g64 f16");
    const auto bytes = [](const nlohmann::json& j) {
      return j["memory"]["cpu"]["weights"].get<double>();
    };
    const Outcome e = run("pig-generate", {"-m", "tiny-16m", "-p", "x", "--dry-run", "--format",
                                           "jsonl", "-s", "model.weights=fp8"});
    const auto fp8 = nlohmann::json::parse(e.out);
    CHECK(fp8["weights"] == "fp8 f32");
    CHECK(bytes(fp8) < 0.52 * bytes(full));
    CHECK(bytes(fp8) > 0.5 * bytes(full));
    // 4.375 and 8.25 bits in place of 16, but for biases and norms.
    CHECK(bytes(int4) < 0.4 * bytes(full));
    CHECK(bytes(int4) > 4.25 / 16 * bytes(full));
  }

  TEST_CASE("a GPU's plan holds codes, of which products read activations as they are") {
    const auto plan = [](const Words& more) {
      return run_process(program("pig-generate"),
                         {.arguments = Words{"-m", "tiny-16m", "-p", "x", "--dry-run", "--format",
                                             "jsonl", "-s", "run.plan_for=h200"} +
                                       more});
    };
    const auto bytes = [&](const char* weights) {
      const Outcome planned = plan({"-s", std::string("model.weights=") + weights});
      REQUIRE(planned.status == 0);
      return nlohmann::json::parse(planned.out)["memory"]["cuda:0"]["weights"].get<double>();
    };
    CHECK(bytes("int4") < 0.4 * bytes("bf16"));
    CHECK(bytes("fp8") < 0.6 * bytes("bf16"));
    const Outcome rounded = plan({"-s", "model.weights=int4", "-s", "model.activations=int8"});
    CHECK(rounded.status == 3);
    CHECK(has(rounded.err, "is int8, but a GPU does not round activations to int8"));
    const Outcome none = plan({"-s", "model.activations=fp8"});
    CHECK(none.status == 3);
    CHECK(has(none.err, "no matrix of tiny-16m is fp8 in this run's memory"));
    CHECK(has(plan({"-s", "model.weights=int4", "-s", "model.activations=fp8"}).err,
              "needs weights fp8, found int4"));
    CHECK(plan({"-s", "model.weights=fp8", "-s", "model.activations=fp8"}).status == 0);
  }

  TEST_CASE("a state goes on only with the activations that made it") {
    const TemporaryFolder folder;
    const auto generate = [&](const char* activations, const Words& more) {
      return run("pig-generate", Words{"-m", "tiny-16m", "-n", "4", "-s", "model.weights=int8",
                                       "-s", std::string("model.activations=") + activations} +
                                     more);
    };
    const std::string path = (folder / "state").string();
    REQUIRE(generate("int8", {"-p", "The lamp was lit", "-s", "output.state=" + path}).status == 0);
    const Words go_on = {"-p", " and", "-s", "model.state=" + path};
    CHECK(generate("auto", go_on).status == 0);
    const Outcome other = generate("compute", go_on);
    CAPTURE(other.err);
    CHECK(other.status == 4);
    CHECK(has(other.err, "was saved with model.activations int8, this run has compute"));
  }

  TEST_CASE("settings of quantized weights that do not fit are refused") {
    struct Case {
      Words set;
      const char* message;
    };
    for (const Case& c :
         {Case{{"-s", "model.group=32"}, "model.group: needs weights int8 or int4"},
          {{"-s", "model.head=int4"}, "model.head: needs weights int8, int4 or fp8"},
          {{"-s", "model.weights=fp8", "-s", "model.group=32"},
           "model.group: needs weights int8 or int4, found fp8"},
          {{"-s", "model.weights=fp8", "-s", "model.activations=int8"},
           "model.activations: needs weights int8 or int4, found fp8"},
          {{"-s", "model.scale_search=false"}, "model.scale_search: needs weights int8 or int4"},
          {{"-s", "model.weights=int4", "-s", "model.group=48"},
           "model.group: expected 32, 64 or 128, found 48"},
          {{"-s", "model.weights=f32"},
           "model.weights: no product multiplies f32 weights by bf16 inputs"},
          {{"-s", "model.weights=int4", "-s", "model.head=f32"},
           "model.head: no product multiplies f32 weights by bf16 inputs"}}) {
      const Outcome o = run("pig-generate", Words{"-m", "tiny-16m", "-p", "x", "-n", "1"} + c.set);
      CHECK(o.status == 3);
      CAPTURE(o.err);
      CHECK(has(o.err, c.message));
    }
  }

  TEST_CASE("quantized drafts that cannot help are refused") {
    const auto refused = [](const Words& set, const char* message) {
      const Outcome o =
          run("sequoia-generate", Words{"-m", "tiny-16m", "-p", "x", "-n", "1"} + set);
      CAPTURE(o.err);
      CHECK(o.status == 3);
      CHECK(has(o.err, message));
    };
    refused({"-s", "spec.draft=ngram", "-s", "draft.weights=int4"},
            "spec.draft: kind ngram has no key 'weights'");
    refused({"-s", "spec.draft=nested", "-s", "draft2.path=tiny-2m", "-s",
             "draft.cache.kind=streaming", "-s", "draft.weights=int4"},
            "spec.draft: kind nested has no key 'weights'");
    refused({"-s", "spec.draft=self", "-s", "model.weights=int4", "-s", "draft.weights=int4"},
            "draft.weights: is int4, but the copy reads as many bytes as the target");
  }

  TEST_CASE("policies with other weights are compared in tasks that one model need not share") {
    const TemporaryFolder folder;
    const std::string text =
        folder.write("text.txt", "The lamp was lit and the lamp was out.").string();
    const auto eval = [&](const std::string& task, const std::string& policies) {
      return run("pig-eval", {"-m", "tiny-16m", "--task", task, "--data", text, "-s",
                              "eval.policies=[" + policies + "]"});
    };
    const Outcome fine = eval("perplexity", "{name: q, kind: full, weights: int4}");
    CAPTURE(fine.err);
    CHECK(fine.status == 0);
    CHECK(has(fine.out, "q "));
    const Outcome attention = eval("attention", "{name: q, kind: full, weights: int4}");
    CHECK(attention.status == 3);
    CHECK(has(attention.err, "'q' has other weights"));
    const Outcome numbers = eval("perplexity", "{name: f, kind: full, weights: f32}");
    CHECK(numbers.status == 3);
    CHECK(has(numbers.err, "has weights f32, but model.compute is bf16"));
  }

  TEST_CASE("a summary says which weights and activations products read") {
    const Outcome o =
        run("pig-generate", {"-m", "tiny-16m", "-p", "x", "-n", "2", "-s", "model.weights=int8"});
    CHECK(has(o.err, "57 matrices as i8 g64 f16, multiplied by activations rounded to int8"));
    const Outcome exact =
        run("pig-generate", {"-m", "tiny-16m", "-p", "x", "-n", "2", "-s", "model.weights=int8",
                             "-s", "model.activations=compute"});
    CHECK(has(exact.err, "57 matrices as i8 g64 f16, multiplied by activations as they are"));
    const Outcome sparse = run(
        "sirius-generate", {"-m", "tiny-16m", "-p", "x", "-n", "2", "-s", "model.weights=int8"});
    CHECK(has(sparse.err, "FFNs in memory as numbers"));
  }
}
