#include <doctest/doctest.h>

#include "text/support.h"
#include "text/tokenizer_config.h"

using namespace tandem;
using namespace tandem::text;
using test::Piece;

namespace {

using Ids = std::vector<int32_t>;
constexpr int kNormal = 1, kControl = 3, kByte = 6;

// ids: 0 <unk>, 1 <s>, 2 </s>, 3 [X], 4.. as listed, then 256 bytes from kFirstByte.
enum : int32_t { kX = 3, kMark, kA, kB, kMarkA, kAb, kFirstByte };

std::string small_model(bool add_dummy_prefix = true) {
  std::vector<Piece> pieces = {{"[X]", 0, kControl}, {"\u2581", -3, kNormal},  {"a", -4, kNormal},
                               {"b", -5, kNormal},   {"\u2581a", -1, kNormal}, {"ab", -2, kNormal}};
  for (int byte = 0; byte < 256; ++byte)
    pieces.push_back({fmt::format("<0x{:02X}>", byte), 0, kByte});
  return test::sentencepiece_model(pieces, add_dummy_prefix);
}

std::unique_ptr<Tokenizer> make(const TokenizerConfig& config = {}) {
  return tokenizer_from_sentencepiece(small_model(), config, "tokenizer.model");
}

}  // namespace

TEST_SUITE("text/sentencepiece") {
  TEST_CASE("pieces, byte fallback, BOS by default") {
    const auto t = make();
    CHECK(t->encode("ab") == Ids{1, kMarkA, kB});
    CHECK(t->encode("bab", {.add_bos = false}) == Ids{kMark, kB, kAb});
    CHECK(t->encode("\u00E9", {.add_bos = false}) ==
          Ids{kMark, kFirstByte + 0xC3, kFirstByte + 0xA9});
    CHECK(t->encode("") == Ids{1});
    CHECK(t->vocab_size() == kFirstByte + 256);
    CHECK(t->bos_id() == 1);
    CHECK(t->eos_id() == 2);
    CHECK(t->token_bytes(kMarkA) == " a");
    CHECK(t->token_bytes(kFirstByte + 10) == "\n");
    CHECK(t->is_special(kX));
    CHECK_FALSE(t->is_special(kA));
    TokenizerConfig config;
    config.add_bos_token = false;
    CHECK(make(config)->encode("a") == Ids{kMarkA});
  }

  TEST_CASE("decoding drops the space that encoding put in front, and only that") {
    const auto t = make();
    for (const char* text : {"a", " a", "  b ab", "\u00E9\n", "a\tb"}) {
      CHECK(t->decode(t->encode(text, {.add_bos = false})) == text);
      CHECK(t->decode(t->encode(text), true) == text);
    }
  }

  TEST_CASE(
      "control pieces are found in text; each part after them has its own prefix by default") {
    const auto t = make();
    CHECK(t->encode("<s>a[X]a</s>", {.add_bos = false}) == Ids{1, kMarkA, kX, kMarkA, 2});
    CHECK(t->encode("[X]", {.add_bos = false, .parse_special = false}).front() == kMark);
  }

  TEST_CASE("\"legacy\": false: a prefix at the start of the text only") {
    TokenizerConfig config;
    config.legacy = false;
    const auto t = make(config);
    CHECK(t->encode("a", {.add_bos = false}) == Ids{kMarkA});
    CHECK(t->encode("[X]a[X] a", {.add_bos = false}) == Ids{kX, kA, kX, kMarkA});
    CHECK(t->decode(t->encode("ab a", {.add_bos = false})) == "ab a");
  }

  TEST_CASE("a model without dummy prefix keeps leading spaces") {
    const auto t = tokenizer_from_sentencepiece(small_model(false), {}, "m");
    CHECK(t->encode("a", {.add_bos = false}) == Ids{kA});
    CHECK(t->decode(t->encode(" a", {.add_bos = false})) == " a");
  }

  TEST_CASE("added tokens extend the ids; clashes are refused") {
    TokenizerConfig config;
    config.added.push_back({.content = "<pad>", .id = kFirstByte + 256, .special = true});
    const auto t = make(config);
    CHECK(t->encode("a<pad>", {.add_bos = false}) == Ids{kMarkA, kFirstByte + 256});
    CHECK(t->vocab_size() == kFirstByte + 257);
    config.added = {{.content = "<pad>", .id = kA}};
    CHECK(test::error_of([&] { make(config); }).kind() == ErrorKind::input);
    config.added = {{.content = "<pad>", .id = 1 << 23}};
    CHECK(test::error_of([&] { make(config); }).kind() == ErrorKind::input);
  }

  TEST_CASE("damaged models are refused, never a crash") {
    const std::string model = small_model();
    for (size_t length = 0; length < model.size(); length += 7) {
      try {
        tokenizer_from_sentencepiece(std::string_view(model).substr(0, length), {}, "m")
            ->encode("a b");
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::input);
      }
    }
    const Error error = test::error_of([] {
      tokenizer_from_sentencepiece("version https://git-lfs.github.com/spec/v1", {},
                                   "tokenizer.model");
    });
    CHECK(std::string(error.what()).starts_with("tokenizer.model: not a SentencePiece model"));
  }

  TEST_CASE("a character map that points outside itself is refused") {
    const auto with_map = [](const std::string& map) {
      std::string model = small_model();
      model += "\x1A";  // normalizer_spec { precompiled_charsmap }
      model += static_cast<char>(map.size() + 2);
      model += "\x12";
      model += static_cast<char>(map.size());
      return model + map;
    };
    const std::string far_offset(
        "\x04\0\0\0\x00\xFC\xFF\x7F"
        "a\0",
        10);
    const std::string no_terminator(
        "\x04\0\0\0\x00\0\0\x80"
        "a",
        9);
    const std::string size_beyond(
        "\xFF\0\0\0\x00\0\0\0"
        "a\0",
        10);
    for (const std::string& map : {far_offset, no_terminator, size_beyond, std::string("\x01")})
      CHECK(std::string(test::error_of([&] {
                          tokenizer_from_sentencepiece(with_map(map), {}, "m");
                        }).what())
                .find("character map") != std::string::npos);
  }
}
