#include <doctest/doctest.h>

#include <algorithm>

#include "sentencepiece_bytes.h"
#include "text/tokenizer_config.h"
#include "train/data/sample_encoder.h"
#include "train_testing.h"

using namespace tandem;
using namespace tandem::train;

namespace {

text::RenderedChat written(const std::string& prompt, const std::string& answer) {
  text::RenderedChat text;
  text.text = prompt + answer;
  text.answers = {{prompt.size(), text.text.size()}};
  return text;
}

/// A SentencePiece model of letters and bytes that puts a space in front of a text: <s> 1, </s> 2,
/// the space 3, a 4, b 5, a space with a 6, ab 7.
std::unique_ptr<text::Tokenizer> small_sentencepiece() {
  std::vector<test::Piece> pieces = {
      {"\u2581", -3, 1}, {"a", -4, 1}, {"b", -5, 1}, {"\u2581a", -1, 1}, {"ab", -2, 1}};
  for (int byte = 0; byte < 256; ++byte) pieces.push_back({fmt::format("<0x{:02X}>", byte), 0, 6});
  text::TokenizerConfig config;
  config.add_bos_token = true;
  return text::tokenizer_from_sentencepiece(test::sentencepiece_model(pieces), config, "m");
}

}  // namespace

TEST_SUITE("train/sample_encoder") {
  TEST_CASE("a prompt has the ids that it has alone, whatever the answer begins with") {
    const text::Tokenizer& tokenizer = test::tiny_tokenizer();
    for (const std::string prompt : {"### Response:\n", "Answer:", "Answer: ", "a", "{\"a\": "})
      for (const std::string answer : {"\nA: 3", " 42", "  x", "pple pie", "\n\n", "\"b\"}"}) {
        CAPTURE(prompt);
        CAPTURE(answer);
        const std::string ended = answer + "<|end_of_text|>";
        const Sample sample =
            encode_text(tokenizer, written(prompt, ended), Mask::completion_only, true);
        const auto alone = tokenizer.encode(prompt);
        REQUIRE(sample.supervised.size() == 1);
        const auto [begin, end] = sample.supervised[0];
        CHECK(std::ranges::equal(alone, std::span(sample.ids).first(size_t(begin))));
        CHECK(static_cast<size_t>(end) == sample.ids.size());
        CHECK(tokenizer.decode(std::span(sample.ids).subspan(size_t(begin))) == ended);
        CHECK(n_tokens(sample.supervised) == end - begin);
      }
  }

  TEST_CASE("SentencePiece: no space comes between prompt and answer") {
    const auto tokenizer = small_sentencepiece();
    const Sample sample =
        encode_text(*tokenizer, written("ba", "ab</s>"), Mask::completion_only, true);
    CHECK(sample.ids == std::vector<int32_t>{1, 3, 5, 4, 7, 2});
    REQUIRE(sample.supervised.size() == 1);
    CHECK(sample.supervised[0].begin == 4);
    CHECK(tokenizer->decode(sample.ids, true) == "baab");
  }

  TEST_CASE("BOS comes once: the tokenizer's prefix, or the text's own") {
    const text::Tokenizer& tokenizer = test::tiny_tokenizer();
    const auto ids = [&](const std::string& prompt, bool prefixed) {
      return encode_text(tokenizer, written(prompt, "b"), Mask::completion_only, prefixed).ids;
    };
    const auto n_bos = [&](const std::vector<int32_t>& all) {
      return std::ranges::count(all, *tokenizer.bos_id());
    };
    CHECK(ids("a", true) == ids("<|begin_of_text|>a", true));
    CHECK(n_bos(ids("a", true)) == 1);
    CHECK(n_bos(ids("a", false)) == 0);
    const auto llama = small_sentencepiece();
    const Sample spelled = encode_text(*llama, written("<s> a", "b"), Mask::completion_only, true);
    CHECK(std::ranges::count(spelled.ids, 1) == 1);
    CHECK(spelled.ids.front() == 1);
  }

  TEST_CASE("mask all supervises everything but the first token") {
    const Sample sample = encode_text(test::tiny_tokenizer(), written("a", "b"), Mask::all, true);
    REQUIRE(sample.supervised.size() == 1);
    CHECK(sample.supervised[0].begin == 1);
    CHECK(static_cast<size_t>(sample.supervised[0].end) == sample.ids.size());
    text::RenderedChat no_answer;
    no_answer.text = "a";
    CHECK(encode_text(test::tiny_tokenizer(), no_answer, Mask::all, true).supervised.empty());
  }

  TEST_CASE("truncation cuts spans, and what follows the last of them is dropped") {
    Sample sample{.ids = {9, 9, 9, 9, 9, 9, 9, 9}, .supervised = {{2, 4}, {5, 7}}};
    sample.drop_tail();
    CHECK(sample.ids.size() == 7);
    sample.truncate(6);
    CHECK(sample.ids.size() == 6);
    CHECK(n_tokens(sample.supervised) == 3);
    sample.truncate(5);
    CHECK(sample.supervised.size() == 1);
    sample.truncate(2);
    CHECK(sample.supervised.empty());
  }
}
