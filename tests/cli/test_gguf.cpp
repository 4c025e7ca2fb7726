#include <doctest/doctest.h>

#include "cli/rank_runs.h"
#include "gguf_bytes.h"
#include "source_dir.h"

using namespace tandem::testing;

namespace {

Outcome run(const char* tool, const Words& words) { return command(tool + words + "--device cpu"); }

}  // namespace

TEST_SUITE("cli/gguf") {
  TEST_CASE("drafts and ranks of a GGUF file write its own text") {
    const TemporaryFolder folder;
    const std::string ids = folder.write("ids.json", "[5,17,9,40,88,3,12]").string();
    const std::string model = tandem::test::source_dir() / "tests/data/gguf/qwen3-tied.gguf";
    const Words words = {"-m", model, "--prompt-ids",      ids,  "-n",           "24",
                         "-q", "-s",  "model.compute=f32", "-s", "run.threads=1"};
    const Outcome plain = run("pig-generate", words);
    REQUIRE(plain.status == 0);
    CHECK(plain.out.size() > 24);
    for (const Words& draft :
         {Words{"-s", "spec.draft=ngram"},
          {"-s", "spec.draft=model", "-s", "draft.path=" + model, "-s", "spec.force=true"}}) {
      const Outcome drafted = run("sequoia-generate", words + draft);
      CAPTURE(drafted.err);
      CHECK(drafted.out == plain.out);
    }
    const auto ranks = run_ranks(2, words + Words{"--device", "cpu"});
    CAPTURE(ranks[0].err);
    CHECK(ranks[0].out == plain.out);
  }

  TEST_CASE("a file of quantized weights is not quantized again") {
    const TemporaryFolder folder;
    const std::string model = (folder / "q8_0.gguf").string();
    REQUIRE(run_process(program("s2ft-adapter"), {.arguments = {"-m", "tiny-2m", "--to", "model",
                                                                "--weights", "int8", "-o", model}})
                .status == 0);
    const Outcome o =
        run("pig-generate", {"-m", model, "-p", "x", "-n", "1", "-s", "model.weights=int8"});
    CAPTURE(o.err);
    CHECK(o.status == 3);
    CHECK(has(o.err, "model.weights: is int8, but the weights of"));
    // A policy compares the file's codes with its numbers.
    const std::string text =
        folder.write("text.txt", "The lamp was lit, and the lamp was out.").string();
    const Outcome compared =
        run("pig-eval",
            {"-m", model, "--task", "perplexity", "--data", text, "-s", "model.weights=bf16", "-s",
             "eval.policies=[{name: codes, kind: full, activations: int8}]"});
    CAPTURE(compared.err);
    CHECK(compared.status == 0);
    CHECK(has(compared.err, "as i8 g32 f16, multiplied by activations rounded to int8"));
  }

  TEST_CASE("adapters train on a GGUF file and run on it; whole models are not written") {
    const TemporaryFolder folder;
    const std::string model = folder.write("tiny.gguf", tandem::test::tiny_gguf().bytes()).string();
    std::string lines;
    for (int i = 0; i < 8; ++i)
      lines += R"({"prompt": "a a", "completion": " a a a"})"
               "\n";
    const std::string data = folder.write("data.jsonl", lines).string();
    const auto train = [&](const std::string& method) {
      return run("s2ft-train", {"-m", model, "--data", data, "-o", (folder / method).string(), "-s",
                                "train.method=" + method, "-s", "train.steps=2", "-s",
                                "train.batch=2", "-s", "data.val_size=2"});
    };
    for (const char* method : {"full", "spft"}) {
      const Outcome whole = train(method);
      CHECK(whole.status == 3);
      CHECK(has(whole.err, std::string("train.method: ") + method +
                               " writes a model folder, but the base " + model +
                               " is a GGUF file"));
      CHECK_FALSE(std::filesystem::exists(folder / method));
    }

    const Outcome lora = train("lora");
    CAPTURE(lora.err);
    REQUIRE(lora.status == 0);
    CHECK(has(lora.err, "no model is written, because the base is a GGUF file"));
    CHECK_FALSE(has(lora.out + lora.err, "\nmodel  "));
    CHECK_FALSE(std::filesystem::exists(folder / "lora/model"));
    const std::string adapter = (folder / "lora/adapter").string();
    const Outcome text =
        run("pig-generate",
            {"-m", model, "-s", "model.adapters=[{path: " + adapter + "}]", "-p", "a", "-n", "4"});
    CAPTURE(text.err);
    CHECK(text.status == 0);
    const Outcome merged = run_process(
        program("s2ft-adapter"), {.arguments = {"-m", model, "--adapter", adapter, "--to", "model",
                                                "-o", (folder / "merged").string()}});
    CHECK(merged.status == 4);
    CHECK(has(merged.err, "is a GGUF file, into which nothing is merged"));
    CHECK_FALSE(std::filesystem::exists(folder / "merged"));
  }
}
