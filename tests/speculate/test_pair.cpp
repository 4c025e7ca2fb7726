#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "error_text.h"
#include "eval/lossless.h"
#include "generate_runs.h"
#include "io/file.h"
#include "speculate/draft/pair.h"
#include "speculate/round/rounds.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::speculate;
using test::Ids;

namespace {

/// A model of random weights, shaped as one of the test data but for its vocabulary.
std::unique_ptr<decode::Engine> random_model(const TemporaryFolder& folder, int vocab) {
  auto config = nlohmann::json::parse(io::read_file(small_model("llama-2") / "config.json"));
  config["vocab_size"] = vocab;
  const auto path = folder.write("config.json", config.dump());
  return std::make_unique<decode::Engine>(decode::open_model("synthetic:" + path.string(), 1),
                                          engine_spec({.max_seqs = 33, .max_tokens = 64}));
}

/// The model files of a folder whose config.json names another vocabulary.
decode::ModelFiles padded(const std::string& name, int vocab) {
  decode::ModelFiles files = decode::open_model(tiny_model(name).string(), 0);
  files.config.vocab_size = vocab;
  return files;
}

}  // namespace

TEST_SUITE("speculate/pair") {
  TEST_CASE("vocabularies that differ in padding alone go together, others do not") {
    const int n = padded("tiny-2m", 0).tokenizer->vocab_size();
    CHECK_NOTHROW(check_vocabularies(padded("tiny-16m", n), padded("tiny-2m", n + 64)));
    CHECK_NOTHROW(check_vocabularies(padded("tiny-16m", n + 128), padded("tiny-2m", n + 64)));
    const std::string text = input_error_text(
        [&] { check_vocabularies(padded("tiny-16m", n), padded("tiny-2m", n - 1)); });
    CHECK(
        text ==
        fmt::format(
            "spec.draft.path: token {} of tiny-16m does not exist in tiny-2m, which has {} tokens",
            n - 1, n - 1));
  }

  TEST_CASE("rows of logits take the target's width, and ids the draft's") {
    std::vector<float> from = {1, 2, 3, 4, 5, 6}, buffer;
    const Tensor rows(from.data(), DType::f32, {2, 3});
    CHECK(in_vocabulary(rows, 3, buffer).raw() == from.data());
    CHECK(row_of(in_vocabulary(rows, 2, buffer), 1) == Row{4, 5});
    const Row wide = row_of(in_vocabulary(rows, 5, buffer), 1);
    CHECK(Row(wide.begin(), wide.begin() + 3) == Row{4, 5, 6});
    CHECK(std::isinf(wide[3]));
    CHECK(wide[4] < 0);
    CHECK(known_ids(Ids{0, 2, 3, 9}, 3) == Ids{0, 2, 0, 0});
  }

  TEST_CASE("drafts of more and of fewer tokens: the texts are the target's") {
    const auto target = make_engine(small_model("llama-2"), {.max_seqs = 33, .max_tokens = 64});
    const int vocab = target->config().vocab_size;
    const Ids prompt = {5, 17, vocab - 1, 3};
    const TokenTree tree = tree_of_children(std::vector<int>{2, 1, 0, 0}, "test");
    const int slot = target->cache().create();
    const decode::SeqTokens whole[] = {{slot, prompt, false}};
    target->prefill(whole, {});
    for (const int draft_vocab : {vocab - 40, vocab + 24}) {
      CAPTURE(draft_vocab);
      const TemporaryFolder folder;
      const auto draft = random_model(folder, draft_vocab);
      const auto rounds = model_rounds(*target, *draft, tree);
      decode::GenerateSpec how;
      how.max_tokens = 20;
      const std::vector<eval::Ids> prompts = {prompt, {9, 9}, {vocab - 2, 1, 2}};
      CHECK(eval::check_greedy(*target, *rounds, prompts, how).texts_equal == 3);
      rounds->share(prompt);
      how.max_tokens = 3;
      how.sampler.rule = {.temperature = 1.0f, .top_k = 12};
      const eval::DistributionCheck check =
          eval::check_distribution(*target, *rounds, prompt, slot, 1500, how);
      CAPTURE(check.worst_p());
      CHECK(check.worst_p() > 1e-4);
    }
  }
}
