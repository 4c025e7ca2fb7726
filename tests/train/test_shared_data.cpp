#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>

#include "io/jsonl.h"
#include "shared_data.h"
#include "train/data/records.h"
#include "train/data/sample_encoder.h"
#include "train_testing.h"

using namespace tandem;
using namespace tandem::train;

// Data sets and tokenizers that may not be part of the repository.
namespace {

std::unique_ptr<text::Tokenizer> sentencepiece(const std::filesystem::path& model, bool legacy) {
  const test::TemporaryFolder folder;
  std::filesystem::copy_file(model, folder.path() / "tokenizer.model");
  folder.write("tokenizer_config.json", legacy ? R"({"legacy": true})" : R"({"legacy": false})");
  return text::load_tokenizer(folder.path());
}

/// Whether each prompt has the ids that it has alone, and prompt and answer are the text.
void check_prompts(const text::Tokenizer& tokenizer, std::span<const Record> records) {
  for (const TemplateName name : {TemplateName::s2ft_train, TemplateName::alpaca}) {
    DataSettings settings;
    settings.template_name = name;
    const RecordWriter writer(settings, tokenizer, {}, {});
    for (const Record& record : records) {
      const text::RenderedChat written = writer.write(record);
      if (written.answers.empty()) continue;
      CAPTURE(written.text);
      const Sample sample = encode_text(tokenizer, written, Mask::completion_only, true);
      const auto prompt = tokenizer.encode(written.text.substr(0, written.answers[0].begin));
      REQUIRE(sample.supervised.size() == 1);
      const auto ids = std::span<const int32_t>(sample.ids);
      const auto n = static_cast<size_t>(sample.supervised[0].begin);
      const bool doubled = prompt.size() > n;  // a template that spells BOS, encoded with another
      CHECK(std::ranges::equal(ids.first(n), std::span(prompt).subspan(doubled ? 1 : 0)));
      // Some tokenizers put a space after control tokens, with a cut and without.
      const auto joined = tokenizer.encode(written.text, {.add_bos = false});
      CHECK(tokenizer.decode(ids).ends_with(tokenizer.decode(joined)));
    }
  }
}

}  // namespace

TEST_SUITE("train/shared_data") {
  TEST_CASE("LLM-Adapters' files and GSM8K are read as they are") {
    const auto adapters = test::unpacked("llm_adapters");
    const auto gsm8k = test::unpacked("gsm8k");
    if (!adapters || !gsm8k) return;
    const std::pair<const char*, size_t> sizes[] = {{"boolq/test.json", 3270},
                                                    {"piqa/test.json", 1838},
                                                    {"social_i_qa/test.json", 1954},
                                                    {"ARC-Challenge/test.json", 1172},
                                                    {"ARC-Easy/test.json", 2376},
                                                    {"openbookqa/test.json", 500},
                                                    {"winogrande/test.json", 1267},
                                                    {"MultiArith/test.json", 600},
                                                    {"gsm8k/test.json", 1319},
                                                    {"AddSub/test.json", 395},
                                                    {"AQuA/test.json", 254},
                                                    {"SingleEq/test.json", 508},
                                                    {"SVAMP/test.json", 1000},
                                                    {"mawps/test.json", 238},
                                                    {"ft-training_set/math_data.json", 3260}};
    for (const auto& [file, n] : sizes) {
      CAPTURE(file);
      CHECK(read_records(*adapters / file, RecordForm::instructions).size() == n);
    }
    CHECK(read_records(*gsm8k / "train.jsonl", RecordForm::automatic).size() == 7473);
    CHECK(read_records(*gsm8k / "test.jsonl", RecordForm::automatic).size() == 1319);
  }

  TEST_CASE("prompts keep their ids under real tokenizers") {
    const auto adapters = test::unpacked("llm_adapters");
    const auto tokenizers = test::unpacked("tokenizers");
    if (!adapters || !tokenizers) return;
    auto records = read_records(*adapters / "ft-training_set/math_data.json", {});
    records.resize(200);  // answers begin with a line break
    const auto choices = read_records(*adapters / "boolq/test.json", {});
    records.insert(records.end(), choices.begin(), choices.begin() + 200);
    check_prompts(test::tiny_tokenizer(), records);
    check_prompts(*sentencepiece(*tokenizers / "mistral/tokenizer.model.v1", true), records);
    check_prompts(*sentencepiece(*tokenizers / "mistral/tokenizer.model.v1", false), records);
    for (const auto& [name, kind] :
         {std::pair{"gpt-2", "GPT2Tokenizer"}, {"qwen", "Qwen2Tokenizer"}}) {
      std::ofstream(*tokenizers / name / "tokenizer_config.json")
          << fmt::format(R"({{"tokenizer_class": "{}"}})", kind);
      check_prompts(*text::load_tokenizer(*tokenizers / name), records);
    }
  }
}
