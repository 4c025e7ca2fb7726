#include <doctest/doctest.h>

#include "error_text.h"
#include "gguf_bytes.h"
#include "io/file.h"
#include "io/gguf.h"
#include "io/json.h"
#include "safetensors_text.h"
#include "source_dir.h"
#include "text/tokenizer.h"

using namespace tandem;
using io::Json;
using test::GgufBytes;

namespace {

const std::filesystem::path kModel = test::source_dir() / "recipes/models/tiny-16m";

/// The metadata that a converter makes of tiny-16m's tokenizer.json.
GgufBytes converted(const std::string& pre) {
  const Json json = io::parse_json(io::read_file(kModel / "tokenizer.json"), "tokenizer.json");
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;
  const auto place = [&](size_t id) {
    if (id >= tokens.size()) {
      tokens.resize(id + 1);
      types.resize(id + 1, 1);
    }
  };
  for (const auto& [piece, id] : json["model"]["vocab"].items()) {
    place(id);
    tokens[id] = piece;
  }
  for (const Json& token : json["added_tokens"]) {
    place(token["id"]);
    tokens[token["id"]] = token["content"];
    types[token["id"]] = token["special"] ? 3 : 4;
  }
  for (const Json& rule : json["model"]["merges"])
    merges.push_back(rule.is_string()
                         ? rule.get<std::string>()
                         : rule[0].get<std::string>() + " " + rule[1].get<std::string>());
  GgufBytes file;
  file.text("tokenizer.ggml.model", "gpt2");
  if (!pre.empty()) file.text("tokenizer.ggml.pre", pre);
  file.texts("tokenizer.ggml.tokens", tokens);
  file.list("tokenizer.ggml.token_type", 5, types);
  file.texts("tokenizer.ggml.merges", merges);
  file.number("tokenizer.ggml.bos_token_id", 0);
  file.number("tokenizer.ggml.eos_token_id", 1);
  return file;
}

std::unique_ptr<text::Tokenizer> tokenizer_of(const GgufBytes& file,
                                              std::vector<std::string>* warnings = nullptr) {
  const std::string image = file.bytes();
  std::vector<std::string> own;
  return text::tokenizer_from_gguf(io::Gguf::parse(test::as_bytes(image), "m.gguf"),
                                   warnings != nullptr ? *warnings : own);
}

std::string error_of(const GgufBytes& file) {
  return test::input_error_text([&] { tokenizer_of(file); });
}

}  // namespace

TEST_SUITE("text/gguf") {
  TEST_CASE("ids are those of the tokenizer.json that the metadata were made from") {
    const auto want = text::load_tokenizer(kModel);
    const auto found = tokenizer_of(converted("llama-bpe"));
    CHECK(found->bos_id() == want->bos_id());
    CHECK(found->vocab_size() == want->vocab_size());
    const std::string document =
        io::read_file(test::source_dir() / "recipes/demo/lighthouse-logbook.txt").substr(0, 20000);
    for (const std::string& text :
         {document, std::string("1234567 12 x's 'S\n\n  \t runs   of spaces  "),
          std::string("naïve Ünïcode 漢字 😀 <|im_start|>user")}) {
      CAPTURE(text.substr(0, 40));
      CHECK(found->encode(text, {.add_bos = false}) == want->encode(text, {.add_bos = false}));
      CHECK(found->decode(want->encode(text)) == want->decode(want->encode(text)));
    }
  }

  TEST_CASE("BOS goes by the key, or else by the kind of tokenizer") {
    const auto first = [](GgufBytes file) { return tokenizer_of(file)->prefix(); };
    CHECK(first(converted("llama-bpe")) == std::vector<int32_t>{0});
    CHECK(first(converted("qwen2")).empty());
    GgufBytes file = converted("llama-bpe");
    file.truth("tokenizer.ggml.add_bos_token", false);
    CHECK(first(file).empty());
    file = converted("qwen2");
    file.truth("tokenizer.ggml.add_bos_token", true);
    CHECK(first(file) == std::vector<int32_t>{0});
  }

  TEST_CASE("SentencePiece pieces merge by score") {
    const auto t = tokenizer_of(test::tiny_gguf());
    CHECK(t->encode("a") == std::vector<int32_t>{1, 5});
    CHECK(t->encode("aa", {.add_bos = false}) == std::vector<int32_t>{5, 4});
    CHECK(t->decode(std::vector<int32_t>{5, 4}) == "aa");
    CHECK(t->eos_id() == 2);
  }

  /// Tokens of tiny_gguf and three more, of an architecture.
  GgufBytes with_tokens(const char* architecture, const std::string& spaces) {
    GgufBytes file;
    file.text("general.architecture", architecture);
    file.text("tokenizer.ggml.model", "llama");
    file.texts("tokenizer.ggml.tokens",
               {"<unk>", "<s>", "</s>", "\u2581", "a", "", spaces, "<|end|>"});
    file.list<float>("tokenizer.ggml.scores", 6, {0, 0, 0, -2, -3, -9, 0, 0});
    file.list<int32_t>("tokenizer.ggml.token_type", 5, {2, 3, 3, 1, 1, 0, 4, 3});
    file.truth("tokenizer.ggml.add_space_prefix", false);
    return file;
  }

  TEST_CASE("the user's tokens have spaces in either spelling") {
    for (const char* spaces : {"  ", "\u2581\u2581"}) {
      const auto t = tokenizer_of(with_tokens("gemma3", spaces));
      CHECK(t->encode("a  a", {.add_bos = false}) == std::vector<int32_t>{4, 6, 4});
      CHECK(t->decode(std::vector<int32_t>{4, 6, 4}) == "a  a");
      CHECK(t->encode("a") == std::vector<int32_t>{1, 4});  // ids that a file may leave out
      CHECK(t->eos_id() == 2);
    }
  }

  TEST_CASE("Phi-3's control tokens take the white space after them along") {
    const std::vector<int32_t> trimmed = {4, 7, 4}, whole = {4, 7, 3, 4};
    CHECK(tokenizer_of(with_tokens("phi3", "  "))->encode("a<|end|> a", {.add_bos = false}) ==
          trimmed);
    CHECK(tokenizer_of(with_tokens("llama", "  "))->encode("a<|end|> a", {.add_bos = false}) ==
          whole);
  }

  TEST_CASE("an unknown way of cutting text is refused, and none is warned about") {
    CHECK(error_of(converted("deepseek-llm")) ==
          "m.gguf: tokenizer.ggml.pre 'deepseek-llm' is not supported");
    std::vector<std::string> warnings;
    tokenizer_of(converted(""), &warnings);
    REQUIRE(warnings.size() == 1);
    CHECK(warnings[0].starts_with("m.gguf: its tokenizer does not say how it cuts text"));
    warnings.clear();
    tokenizer_of(converted("gpt-2"), &warnings);
    CHECK(warnings.empty());
    GgufBytes file;
    CHECK(error_of(file) == "m.gguf: 'tokenizer.ggml.tokens' is missing or empty");
    file.texts("tokenizer.ggml.tokens", {"a", "b"});
    CHECK_FALSE(text::has_tokenizer(io::Gguf::parse(test::as_bytes(file.bytes()), "m.gguf")));
    file.text("tokenizer.ggml.model", "bert");
    CHECK(error_of(file) == "m.gguf: tokenizer 'bert' is not supported");
    file = test::tiny_gguf();
    file.number("tokenizer.ggml.unknown_token_id", 6);
    CHECK(error_of(file) == "m.gguf: the id 6 of unknown exceeds the 6 tokens");
    file = GgufBytes();
    file.texts("tokenizer.ggml.tokens", {"a", "b"});
    file.list<int32_t>("tokenizer.ggml.token_type", 5, {1, -1});
    CHECK(
        error_of(file) ==
        "m.gguf: 'tokenizer.ggml.token_type': expected numbers from 0 to 6, found -1 for token 1");
  }
}
