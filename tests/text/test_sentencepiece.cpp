#include <doctest/doctest.h>

#include <cstring>
#include <limits>

#include "base/rng.h"
#include "text/sentencepiece_model.h"
#include "text/support.h"
#include "text/tokenizer_config.h"

using namespace tandem;
using namespace tandem::text;
using namespace std::string_literals;
using test::Piece;

namespace {

using Ids = std::vector<int32_t>;
constexpr int kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6;
constexpr int kUnigram = 1;

// ids: 0 <unk>, 1 <s>, 2 </s>, 3 [X], 4.. as listed, then 256 bytes from kFirstByte.
enum : int32_t { kX = 3, kMark, kA, kB, kMarkA, kAb, kFirstByte };

std::string small_model(bool add_dummy_prefix = true) {
  std::vector<Piece> pieces = {{"[X]", 0, kControl}, {"\u2581", -3, kNormal},  {"a", -4, kNormal},
                               {"b", -5, kNormal},   {"\u2581a", -1, kNormal}, {"ab", -2, kNormal}};
  for (int byte = 0; byte < 256; ++byte)
    pieces.push_back({fmt::format("<0x{:02X}>", byte), 0, kByte});
  return test::sentencepiece_model(pieces, {.add_dummy_prefix = add_dummy_prefix});
}

/// With a piece that is not used, which has texts read at once instead of in windows.
std::string small_model_at_once() {
  const std::string unused = test::piece_bytes({"zz", 0, kUnused});
  std::string model = small_model();
  test::append_bytes(model, 1, unused);
  return model;
}

std::unique_ptr<Tokenizer> make(TokenizerConfig config = {}) {
  if (!config.add_bos_token) config.add_bos_token = true;
  return tokenizer_from_sentencepiece(small_model(), config, "tokenizer.model");
}

/// The message with which a model of these bytes is refused; empty if it is not.
std::string refusal(const std::string& model) {
  try {
    const auto t = tokenizer_from_sentencepiece(model, {}, "m");
    t->decode(t->encode("a dd e"));
    return "";
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::input);
    return error.what();
  }
}

std::string refusal(const std::vector<Piece>& pieces,
                    const test::ModelSettings& settings = {.byte_fallback = false}) {
  return refusal(test::sentencepiece_model(pieces, settings));
}

bool says(const std::string& message, std::string_view part) {
  return message.find(part) != std::string::npos;
}

/// Texts of 1 to n times the letter d, each a prefix of the next.
std::vector<std::string> nested(size_t n) {
  std::vector<std::string> texts;
  for (size_t i = 1; i <= n; ++i) texts.push_back(std::string(i, 'd'));
  return texts;
}

}  // namespace

TEST_SUITE("text/sentencepiece") {
  TEST_CASE("pieces, byte fallback, BOS where it is asked for") {
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
    CHECK(tokenizer_from_sentencepiece(small_model(), {}, "m")->encode("a") == Ids{kMarkA});
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

  TEST_CASE("a cut: no token crosses it, and no space is put after it") {
    for (const bool legacy : {true, false}) {
      TokenizerConfig config;
      config.legacy = legacy;
      const auto t = make(config);
      const std::string text = "aab";
      const size_t cuts[] = {2};
      const CutIds cut = t->encode_cut(text, cuts);
      CHECK(cut.ids == Ids{1, kMarkA, kA, kB});
      CHECK(t->encode(text) == Ids{1, kMarkA, kAb});
      CHECK(cut.before == std::vector<size_t>{3});
      CHECK(t->decode(cut.ids, true) == text);
      // After a control token it is as without a cut.
      const std::string tokens = "a[X]ab";
      const size_t after_token[] = {4};
      CHECK(t->encode_cut(tokens, after_token).ids == t->encode(tokens));
    }
  }

  TEST_CASE("a long text is read in windows: the ids are those of reading it at once") {
    PhiloxStream random(4);
    std::string mixed;
    while (mixed.size() < 200'000) {
      const char* const parts[] = {"a",      "b",      "ab",         " ", "  ",
                                   "\u2581", "\u00E9", "\U0001F600", "\n"};
      mixed += parts[random.below(std::size(parts))];
    }
    for (const bool legacy : {true, false}) {
      TokenizerConfig config;
      config.legacy = legacy;
      config.add_bos_token = true;
      const auto t = make(config);
      const auto at_once = tokenizer_from_sentencepiece(small_model_at_once(), config, "m");
      REQUIRE(at_once->vocab_size() == t->vocab_size() + 1);
      for (const std::string& text :
           {mixed, "[X]" + mixed, std::string(200'001, 'a'), std::string(100'000, ' ') + "a",
            std::string(100'000, 'b') + std::string(100'000, ' ')}) {
        const Ids ids = t->encode(text);
        CHECK(ids == at_once->encode(text));
        CHECK(t->encode_within(text, ids.size()).ids == ids);
        const LimitedIds less = t->encode_within(text, ids.size() - 1);
        CHECK_FALSE(less.fits);
        CHECK(less.at_least >= ids.size());
        CHECK(less.at_least <= ids.size());
        CHECK(std::equal(less.ids.begin(), less.ids.end(), ids.begin()));
      }
    }
  }

  TEST_CASE(
      "\"legacy\": false: no second space before text that begins with one, once normalised") {
    TokenizerConfig config;
    config.legacy = false;
    CHECK(make(config)->encode(" a", {.add_bos = false}) == Ids{kMarkA});
    CHECK(make(config)->encode("  a", {.add_bos = false}) == Ids{kMark, kMarkA});
    CHECK(make(config)->encode("\u2581", {.add_bos = false}) == Ids{kMark});
    // A character map may make a space of another character, and take one away.
    const auto t = tokenizer_from_sentencepiece(
        test::sentencepiece_model(
            {{"\u2581", -1, kNormal}, {"d", -2, kNormal}},
            {.byte_fallback = false, .charsmap = test::charsmap({{"\t", " "}, {" d", "d"}})}),
        config, "m");
    CHECK(t->encode("\td") == Ids{3, 4});
    CHECK(t->encode(" d") == Ids{3, 4});
    CHECK(t->encode("d") == Ids{3, 4});
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
      CHECK(says(refusal(with_map(map)), "character map"));
  }

  TEST_CASE("a character map is followed; one that leads in a circle or too far is refused") {
    const auto refusal_of_map = [](const std::string& map) {
      return refusal({{"d", -1, kNormal}}, {.byte_fallback = false, .charsmap = map});
    };
    const auto t = tokenizer_from_sentencepiece(
        test::sentencepiece_model({{"d", -1, kNormal}, {"\u2581", -2, kNormal}},
                                  {.byte_fallback = false,
                                   .add_dummy_prefix = false,
                                   .charsmap = test::charsmap({{"D", "d"}, {"\u00E9", "dd"}})}),
        {}, "m");
    CHECK(t->encode("D\u00E9d", {.add_bos = false}) == Ids{3, 3, 3, 3});

    const std::string good = test::charsmap({{"d", "e"}});
    CHECK(refusal_of_map(good).empty());
    const auto unit = [](const std::string& map, uint32_t i) {
      uint32_t value = 0;
      std::memcpy(&value, map.data() + 4 + 4 * i, sizeof(value));
      return value;
    };
    const auto with_unit = [&](uint32_t i, uint32_t value) {
      std::string map = good;
      std::memcpy(map.data() + 4 + 4 * i, &value, sizeof(value));
      return map;
    };
    const uint32_t root = unit(good, 0) >> 10;  // where its children lie
    const uint32_t child = root ^ 'd', below = child ^ (unit(good, child) >> 10);
    CHECK(refusal_of_map(with_unit(below, unit(good, below))).empty());
    const uint32_t no_text = 'z' | (below ^ root) << 10, circle = 'd' | (child ^ root) << 10;
    for (const std::string& map :
         {with_unit(0, unit(good, 0) | 0xFFFFFC00u), with_unit(below, no_text),
          with_unit(child, circle), test::charsmap({{"d", std::string(300, 'e')}}),
          test::charsmap({{std::string(1100, 'd'), "e"}})})
      CHECK(says(refusal_of_map(map), "its character map is damaged"));

    const auto nested_rules = [](size_t n) {
      std::vector<std::pair<std::string, std::string>> rules;
      for (const std::string& text : nested(n)) rules.emplace_back(text, "e");
      return test::charsmap(rules);
    };
    CHECK(refusal_of_map(nested_rules(32)).empty());
    CHECK(says(refusal_of_map(nested_rules(33)), "its character map is damaged"));
  }

  TEST_CASE("pieces that the library would trip over are refused by number and text") {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    const auto of = [](const Piece& piece) { return refusal({{"a", -1, kNormal}, piece}); };
    CHECK(of({"b", -1, kNormal}).empty());
    CHECK(says(of({"\0x"s, -1, kNormal}), "piece 4, '?x', has a zero byte"));
    CHECK(says(of({"", -1, kNormal}), "piece 4, '', is empty"));
    CHECK(says(of({"\xA9", -1, kControl}), "piece 4, '?', is not UTF-8"));
    CHECK(says(of({"b", kNan, kNormal}), "piece 4, 'b', has the score nan"));
    CHECK(says(of({"b", -1, 7}), "piece 4, 'b', is of type 7"));
    CHECK(says(of({std::string(1 << 20, 'b'), -1, kUserDefined}), "has 1048576 bytes"));
    CHECK(says(refusal({{std::string(1 << 20, 'b'), -1, kNormal}},
                       {.model_type = kUnigram, .byte_fallback = false}),
               "has 1048576 bytes"));
    CHECK(of({std::string(1024, 'b'), -1, kNormal}).empty());
    CHECK(says(refusal({}, {.model_type = 5}), "its model type is 5"));

    const auto symbols = [](size_t n) {
      std::vector<Piece> pieces;
      for (const std::string& text : nested(n)) pieces.push_back({text, -1, kUserDefined});
      return refusal(pieces);
    };
    CHECK(symbols(64).empty());
    CHECK(says(symbols(65), "more than 64 of its user-defined symbols"));
  }

  TEST_CASE("messages quote what a model says") {
    const Piece red{"\x1B[31m", -1, kNormal};
    CHECK(says(refusal({red, red}), "'?[31m is already defined.'"));
    TokenizerConfig config;
    config.added = {{.content = "\x1B[32m", .id = 3}};
    const Error error = test::error_of([&] {
      tokenizer_from_sentencepiece(test::sentencepiece_model({red}, {.byte_fallback = false}),
                                   config, "m");
    });
    CHECK(says(error.what(), "the added token '?[32m' has the id 3 of the piece '?[31m'"));
  }

  TEST_CASE(
      "a model is read as protocol buffers are, and what encoding does not need is left out") {
    const auto check = [](const std::string& bytes) {
      return checked_sentencepiece_model(bytes, "m").bytes;
    };
    const std::string model = small_model(), checked = check(model);
    std::string longer = model, trainer, test_data;
    test::append_bytes(trainer, 1, "a file of the training data");
    test::append_bytes(longer, 2, trainer);
    test::append_bytes(test_data, 1, "a self-test");
    test::append_bytes(longer, 4, test_data);
    test::append_number(longer, 1, 7);  // a number where a piece is expected: an unknown field
    CHECK(check(longer) == checked);
    CHECK(check(checked) == checked);
    CHECK(check(without_dummy_prefix(model)) == check(small_model(false)));
    for (const std::string& bad : {"\x08"s, "\x03"s, "\x0A\x7F"s, "\x00\x01"s})
      CHECK(says(refusal(model + bad), "protocol buffer is incomplete"));
    CHECK(says(refusal(model + "\x1A\x01\x7F"), "its normalizer is damaged"));
    CHECK(says(refusal(std::string(70 << 20, 'x')), "more than 67108864"));
  }
}
