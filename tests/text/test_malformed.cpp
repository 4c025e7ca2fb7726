#include <doctest/doctest.h>

#include "base/rng.h"
#include "text/chat_template.h"
#include "text/support.h"
#include "text/tokenizer_config.h"

using namespace tandem;
using namespace tandem::text;
using test::added_token;
using test::byte_level_json;
using test::error_of;
using test::json;

namespace {

std::string message_of(const json& file) {
  const Error error = error_of([&] { test::from_json(file); });
  CHECK(error.kind() == ErrorKind::input);
  CHECK(std::string(error.what()).starts_with("tokenizer.json"));
  return error.what();
}

bool says(const std::string& message, std::string_view part) {
  return message.find(part) != std::string::npos;
}

}  // namespace

TEST_SUITE("text/malformed") {
  TEST_CASE("syntax errors have line and column") {
    const Error error = error_of([] { tokenizer_from_json("{\n  \"model\": tru", {}, "t.json"); });
    CHECK(error.kind() == ErrorKind::input);
    CHECK(std::string(error.what()).starts_with("t.json:2:"));
  }

  TEST_CASE("vocabulary") {
    json file = byte_level_json({{"a", "b"}});
    const json good = file;
    file["model"]["vocab"]["ab"] = "256";
    CHECK(says(message_of(file), "the id of the token 'ab'"));
    for (const json& id :
         {json(-1), json(1e3), json(int64_t{1} << 40), json(UINT64_MAX), json(nullptr)}) {
      file["model"]["vocab"]["ab"] = id;
      CHECK(says(message_of(file), "expected an integer from 0"));
    }
    file["model"]["vocab"]["ab"] = 97;
    CHECK(says(message_of(file), "same id 97"));
    file["model"]["vocab"]["ab"] = 16000000;
    CHECK(says(message_of(file), "the largest id is 16000000"));
    file = good;
    file["model"]["vocab"] = json::array();
    CHECK(says(message_of(file), "'vocab'"));
    file["model"].erase("vocab");
    CHECK(says(message_of(file), "'vocab' is missing"));
    file = good;
    file["model"] = nullptr;
    CHECK(says(message_of(file), "'model'"));
    CHECK(error_of([] { tokenizer_from_json("[]", {}, "t"); }).kind() == ErrorKind::input);
  }

  TEST_CASE("merges") {
    json file = byte_level_json({{"a", "b"}});
    const auto with = [&](const json& merge) {
      file["model"]["merges"] = json::array({merge});
      return message_of(file);
    };
    CHECK(says(with("ab"), "one space"));
    CHECK(says(with("a b c"), "one space"));
    CHECK(says(with(" b"), "one space"));
    CHECK(says(with(json::array({"a"})), "two pieces"));
    CHECK(says(with(json::array({"a", 1})), "a piece of a merge"));
    CHECK(says(with(7), "a merge"));
    CHECK(says(with("a \u4E2D"), "\u4E2D"));  // no such piece
    CHECK(says(with("b a"), "'ba'"));         // the result is none
  }

  TEST_CASE("added tokens and template") {
    json file = byte_level_json({}, {added_token("<s>", true)});
    file["added_tokens"][0]["id"] = 97;
    CHECK(says(message_of(file), "same id 97"));
    file["added_tokens"][0] = {{"content", "a"}, {"id", 256}};
    CHECK(says(message_of(file), "the token 'a' has the id 256"));
    file["added_tokens"][0] = {{"content", "<s>"}};
    CHECK(says(message_of(file), "'id'"));
    file["added_tokens"][0] = {{"content", "<s>"}, {"id", 256}, {"special", 1}};
    CHECK(says(message_of(file), "'special'"));
    file["added_tokens"] = json::array();
    file["post_processor"] = {{"type", "TemplateProcessing"},
                              {"single", {{{"SpecialToken", {{"id", "<x>"}}}}}}};
    CHECK(says(message_of(file), "'<x>'"));
  }

  TEST_CASE("what is not supported is refused by name, with a remedy") {
    const json good = byte_level_json({});
    const auto refused = [&](const char* path, const json& value, std::string_view name) {
      json file = good;
      file[json::json_pointer(path)] = value;
      const Error error = error_of([&] { test::from_json(file); });
      CHECK(says(error.what(), name));
      CHECK(says(error.what(), "not supported"));
      CHECK(says(error.hint_text(), "--prompt-ids"));
    };
    refused("/model/type", "Unigram", "Unigram");
    refused("/model/type", "WordPiece", "WordPiece");
    refused("/model/dropout", 0.1, "dropout");
    refused("/model/end_of_word_suffix", "</w>", "end_of_word_suffix");
    refused("/normalizer", {{"type", "BertNormalizer"}}, "BertNormalizer");
    refused("/pre_tokenizer", {{"type", "Whitespace"}}, "Whitespace");
    refused("/pre_tokenizer", nullptr, "ByteLevel");
    refused("/post_processor", {{"type", "RobertaProcessing"}}, "RobertaProcessing");
    refused("/pre_tokenizer",
            {{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Contiguous"}},
            "Contiguous");
    json deep = {{"type", "Digits"}};
    for (int i = 0; i < 20; ++i)
      deep = {{"type", "Sequence"}, {"pretokenizers", json::array({deep})}};
    refused("/pre_tokenizer", deep, "nested");
  }

  TEST_CASE("patterns that do not compile, or that backtrack without end") {
    json file = byte_level_json({});
    const auto set_pattern = [&](const char* pattern) {
      const json split = {
          {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
      const json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
      file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
    };
    set_pattern("(a");
    CHECK(says(message_of(file), "does not compile"));
    set_pattern("(a+)+(a+)+$");
    const auto t = test::from_json(file);
    CHECK(t->encode("aaa").size() == 3);
    const std::string text = std::string(4000, 'a') + "b";
    CHECK(says(error_of([&] { t->encode(text); }).what(), "the pattern failed"));
  }

  TEST_CASE("folders without, and with unusable, tokenizers") {
    const test::TemporaryFolder folder;
    CHECK(says(error_of([&] { load_tokenizer(folder.path()); }).what(),
               "expected tokenizer.json, tokenizer.model"));
    CHECK(says(error_of([&] { load_tokenizer(folder.path() / "none"); }).what(), "not a folder"));
    folder.write("tokenizer_config.json", R"({"bos_token": 7})");
    CHECK(says(error_of([&] { load_tokenizer(folder.path()); }).what(), "tokenizer_config.json"));
    folder.write("tokenizer_config.json", R"({"added_tokens_decoder": {"x": {"content": "a"}}})");
    CHECK(says(error_of([&] { load_tokenizer(folder.path()); }).what(), "expected an id"));
    folder.write("tokenizer_config.json", "{}");
    folder.write("vocab.json", R"({"a": 0})");
    folder.write("merges.txt", "");
    CHECK(says(error_of([&] { load_tokenizer(folder.path()); }).what(),
               "expected a known tokenizer class"));
    folder.write("tokenizer_config.json", R"({"tokenizer_class": "GPT2TokenizerFast"})");
    CHECK(load_tokenizer(folder.path())->vocab_size() == 2);
    folder.write("merges.txt", "#version: 0.2\na  b\n");
    CHECK(says(error_of([&] { load_tokenizer(folder.path()); }).what(), "merges.txt:2"));
  }

  TEST_CASE("invalid UTF-8 in a prompt") {
    const auto t = test::from_json(byte_level_json({}));
    const Error error = error_of([&] { t->encode("good \xFF"); });
    CHECK(error.kind() == ErrorKind::input);
    CHECK(says(error.what(), "byte 5"));
    CHECK_FALSE(error.hint_text().empty());
  }

  TEST_CASE("mutated files give an Error of kind input or a tokenizer that works") {
    const std::string good =
        byte_level_json({{"a", "b"}, {"ab", "c"}}, {added_token("<s>", true)}).dump();
    PhiloxStream random(21);
    for (int round = 0; round < 1500; ++round) {
      std::string bytes = good;
      for (uint32_t n = 1 + random.below(4); n > 0; --n) {
        const uint32_t at = random.below(static_cast<uint32_t>(bytes.size()));
        switch (random.below(3)) {
          case 0:
            bytes[at] = static_cast<char>(random.below(256));
            break;
          case 1:
            bytes.erase(at, 1 + random.below(8));
            break;
          default:
            bytes.insert(at, bytes.substr(random.below(at + 1), random.below(12)));
        }
      }
      try {
        const auto t = tokenizer_from_json(bytes, {}, "t");
        t->decode(t->encode("abc <s> \u00E9"));
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::input)
          FAIL_CHECK("seed 21, round " << round << error.what());
      }
    }
  }
}
