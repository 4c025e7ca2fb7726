#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "base/rng.h"
#include "text/support.h"
#include "text/tokenizer_config.h"
#include "text/utf8.h"

using namespace tandem;
using namespace tandem::text;
using test::added_token;
using test::byte_level_json;
using test::from_json;
using test::json;

namespace {

using Ids = std::vector<int32_t>;

/// In byte_level_json the id of a byte is its value.
Ids bytes_of(std::string_view text) {
  Ids ids;
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

std::string random_text(PhiloxStream& random, uint32_t max_chars) {
  std::string text;
  for (uint32_t n = random.below(max_chars + 1); n > 0; --n) {
    constexpr uint32_t kLimits[] = {0x80, 0x250, 0x3000, 0x11000, 0x20000};
    uint32_t c = random.below(kLimits[random.below(5)]);
    if (c >= 0xD800 && c < 0xE000) c = 0x1F600;
    append_utf8(text, c);
  }
  return text;
}

std::unique_ptr<Tokenizer> embedded() {
  return load_tokenizer(test::source_path("recipes/models/tiny-16m"));
}

}  // namespace

TEST_SUITE("text/bpe") {
  TEST_CASE("merges go by rank, then from the left") {
    const auto t = from_json(byte_level_json({{"b", "c"}, {"a", "b"}, {"a", "bc"}, {"c", "c"}}));
    CHECK(t->encode("ab") == Ids{257});
    CHECK(t->encode("abc") == Ids{258});  // bc first, then a+bc; never ab
    CHECK(t->encode("bcc") == Ids{256, 'c'});
    CHECK(t->encode("ccc") == Ids{259, 'c'});  // leftmost of equal rank
    CHECK(t->encode("abab") == Ids{257, 257});
    CHECK(t->encode("") == Ids{});
    CHECK(t->vocab_size() == 260);
    CHECK(t->token_bytes(258) == "abc");
    CHECK(t->id_of("abc") == 258);
    CHECK_FALSE(t->id_of("nothing").has_value());
  }

  TEST_CASE("words are cut by GPT-2's pattern: no merge crosses a cut") {
    const auto t = from_json(byte_level_json(
        {{"a", " "}, {" ", "a"}, {"1", "a"}, {"'", "s"}, {" ", " "}, {"\r", "\n"}, {"a", "'"}}));
    CHECK(t->encode("a a") == Ids{'a', 257});         // the space goes with the word after it
    CHECK(t->encode("a1a") == Ids{'a', '1', 'a'});    // digits apart from letters
    CHECK(t->encode("a's") == Ids{'a', 259});         // contraction
    CHECK(t->encode("a   a") == Ids{'a', 260, 257});  // all but one of the spaces
    CHECK(t->encode("a  ") == Ids{'a', 260});
    CHECK(t->encode("a\r\na") == Ids{'a', '\r', '\n', 'a'});  // the last one stands alone
    CHECK(t->encode("a\r\n") == Ids{'a', 261});
  }

  TEST_CASE("U+180E is no white space, U+0085 and U+2003 are") {
    // In PCRE2 itself \s takes U+180E; the engine that the patterns are written for does not.
    json file = byte_level_json({{"!", "\xE1"}, {"!", "\xC2"}, {"!", "\xE2"}});
    const auto t = from_json(file);
    CHECK(t->encode("!\u180E").front() == 256);
    CHECK(t->encode("!\u0085").front() == '!');
    CHECK(t->encode("!\u2003").front() == '!');
  }

  TEST_CASE("merges as pairs, ignore_merges, prefix space") {
    json file = byte_level_json({{"a", "b"}, {"b", "c"}});
    file["model"]["vocab"]["abc"] = 258;
    CHECK(from_json(file)->encode("abc") == Ids{256, 'c'});
    file["model"]["ignore_merges"] = true;
    CHECK(from_json(file)->encode("abc") == Ids{258});
    file["model"]["merges"] = json::array({json::array({"a", "b"}), json::array({"b", "c"})});
    CHECK(from_json(file)->encode("ab abcd") == Ids{256, ' ', 256, 'c', 'd'});
    file["pre_tokenizer"]["add_prefix_space"] = true;
    CHECK(from_json(file)->encode("x") == Ids{' ', 'x'});
    CHECK(from_json(file)->encode(" x") == Ids{' ', 'x'});
  }

  TEST_CASE("pre-tokenisers: Split with its behaviours, Digits, Sequence") {
    json file = byte_level_json({{"a", "b"}, {"1", "2"}, {"-", "a"}});
    const json byte_level = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
    const auto with = [&](const json& step) {
      file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {step, byte_level}}};
      return from_json(file)->encode("-ab12");
    };
    const auto split = [](const char* kind, const char* pattern, const char* behavior,
                          bool invert) {
      return json{{"type", "Split"},
                  {"pattern", {{kind, pattern}}},
                  {"behavior", behavior},
                  {"invert", invert}};
    };
    CHECK(with(split("String", "-", "Isolated", false)) == Ids{'-', 256, 257});
    CHECK(with(split("String", "-", "Removed", false)) == Ids{256, 257});
    CHECK(with(split("Regex", "[a-z]+|[0-9]", "Removed", true)) == Ids{256, '1', '2'});
    CHECK(with(split("String", ".", "Isolated", false)) ==
          Ids{'-', 256, 257});  // not any character
    CHECK(with({{"type", "Digits"}, {"individual_digits", true}}) == Ids{'-', 256, '1', '2'});
    CHECK(with({{"type", "Digits"}, {"individual_digits", false}}) == Ids{'-', 256, 257});
    CHECK(with(split("Regex", "(?=1)", "Isolated", false)) == Ids{'-', 256, 257});  // empty matches
  }

  TEST_CASE("NFC comes before merging") {
    json file = byte_level_json({{"\xC3", "\xA9"}});
    file["normalizer"] = {{"type", "NFC"}};
    CHECK(from_json(file)->encode("e\u0301") == Ids{256});
    CHECK(from_json(file)->decode(Ids{256}) == "\u00E9");
  }

  TEST_CASE("added tokens: longest first, strips, single words, special only on request") {
    const auto t =
        from_json(byte_level_json({}, {added_token("<a>", true), added_token("<a><b>", false),
                                       added_token("foo", false, {{"single_word", true}}),
                                       added_token("<l>", false, {{"lstrip", true}}),
                                       added_token("<r>", false, {{"rstrip", true}})}));
    CHECK(t->encode("<a>") == Ids{256});
    CHECK(t->encode("<a><b>") == Ids{257});
    CHECK(t->encode("<a><a><b") == Ids{256, 256, '<', 'b'});
    CHECK(t->encode("<a>", {.parse_special = false}) == bytes_of("<a>"));
    CHECK(t->encode("<a><b>", {.parse_special = false}) == Ids{257});  // not special
    CHECK(t->encode("foo") == Ids{258});
    CHECK(t->encode("-foo.") == Ids{'-', 258, '.'});
    CHECK(t->encode("xfoo") == bytes_of("xfoo"));
    CHECK(t->encode("foo\u00E9") == bytes_of("foo\u00E9"));
    CHECK(t->encode("a \u3000<l> b") == Ids{'a', 259, ' ', 'b'});
    CHECK(t->encode("a <r> \n b") == Ids{'a', ' ', 260, 'b'});
    CHECK(t->is_special(256));
    CHECK_FALSE(t->is_special(257));
    CHECK_FALSE(t->is_special(-1));
    CHECK_FALSE(t->is_special(1 << 20));
    CHECK(t->decode(Ids{256, 'x', 257}, true) == "x<a><b>");
  }

  TEST_CASE("added tokens that are looked for in normalised text") {
    json file = byte_level_json({}, {added_token("e\u0301!", false, {{"normalized", true}})});
    file["normalizer"] = {{"type", "NFC"}};
    CHECK(from_json(file)->encode("e\u0301!") == Ids{256});
    CHECK(from_json(file)->encode("\u00E9!") == Ids{256});
  }

  TEST_CASE("BOS follows the template of tokenizer.json, and no \"add_bos_token\" changes it") {
    json file = byte_level_json({}, {added_token("<s>", true)});
    file["post_processor"] = {{"type", "TemplateProcessing"},
                              {"single",
                               {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                                {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}}};
    const auto t = from_json(file);
    CHECK(t->encode("x") == Ids{256, 'x'});
    CHECK(t->encode("") == Ids{256});
    CHECK(t->encode("x", {.add_bos = false}) == Ids{'x'});
    CHECK(t->encode("<s>x") == Ids{256, 256, 'x'});
    CHECK(t->bos_id() == 256);
    TokenizerConfig config;
    config.tokenizer_class = "LlamaTokenizer";
    config.bos_token = "<s>";
    config.add_bos_token = false;
    CHECK(tokenizer_from_json(file.dump(), config, "t")->encode("x") == Ids{256, 'x'});
    file["post_processor"] = nullptr;
    config.add_bos_token = true;
    CHECK(tokenizer_from_json(file.dump(), config, "t")->encode("x") == Ids{'x'});
  }

  TEST_CASE("byte fallback: space marks, unknown characters as bytes, leading space dropped") {
    json vocab = {{"<unk>", 0}, {"\u2581", 1}, {"a", 2}, {"b", 3}, {"\u2581a", 4}, {"ab", 5}};
    for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = 6 + byte;
    const json file = {
        {"normalizer",
         {{"type", "Sequence"},
          {"normalizers",
           {{{"type", "Prepend"}, {"prepend", "\u2581"}},
            {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}}},
        {"decoder", {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}},
        {"model",
         {{"type", "BPE"},
          {"unk_token", "<unk>"},
          {"fuse_unk", true},
          {"byte_fallback", true},
          {"vocab", vocab},
          {"merges", {"\u2581 a", "a b"}}}}};
    const auto t = from_json(file);
    CHECK(t->encode("a b") == Ids{4, 1, 3});
    CHECK(t->encode("ab") == Ids{4, 3});
    CHECK(t->encode("bab") == Ids{1, 3, 5});
    CHECK(t->encode("\u00E9") == Ids{1, 6 + 0xC3, 6 + 0xA9});
    for (const char* text : {"a b", " a", "\u00E9\n", "b  ab "})
      CHECK(t->decode(t->encode(text)) == text);
  }

  TEST_CASE("units without a token: the unknown token if there is one, else an error") {
    json file = byte_level_json({});
    file["model"]["vocab"].erase("z");
    const Error error = test::error_of([&] { from_json(file)->encode("az"); });
    CHECK(error.kind() == ErrorKind::input);
    CHECK(std::string(error.what()).find("byte 0x7A") != std::string::npos);
    file["model"]["unk_token"] = "?";
    CHECK(from_json(file)->encode("zz") == Ids{'?', '?'});
    file["model"]["fuse_unk"] = true;
    CHECK(from_json(file)->encode("zza") == Ids{'?', 'a'});
  }

  TEST_CASE("vocab.json with merges.txt: rules by class name") {
    const json file = byte_level_json({{"a", "b"}, {"1", "2"}}, {});
    const std::string vocab = file["model"]["vocab"].dump();
    const std::string merges = "#version: 0.2\na b\r\n1 2\n";
    TokenizerConfig config;
    config.tokenizer_class = "GPT2Tokenizer";
    CHECK(tokenizer_from_vocab_merges(vocab, merges, config, "m")->encode("ab12") == Ids{256, 257});
    config.tokenizer_class = "Qwen2Tokenizer";  // digits one by one, NFC
    config.added.push_back({.content = "<|im_end|>", .id = 258, .special = true});
    config.eos_token = "<|im_end|>";
    const auto qwen = tokenizer_from_vocab_merges(vocab, merges, config, "m");
    CHECK(qwen->encode("ab12<|im_end|>") == Ids{256, '1', '2', 258});
    CHECK(qwen->encode("e\u0301") == bytes_of("\u00E9"));
    CHECK(qwen->eos_id() == 258);
    CHECK_FALSE(qwen->bos_id().has_value());
    config.tokenizer_class = "OtherTokenizer";
    const Error error =
        test::error_of([&] { tokenizer_from_vocab_merges(vocab, merges, config, "m"); });
    CHECK(std::string(error.what()).find("OtherTokenizer") != std::string::npos);
    CHECK(error.hint_text().find("Qwen2Tokenizer") != std::string::npos);
  }

  TEST_CASE("a cut: what stands before it has the ids that it has alone") {
    const auto t = load_tokenizer(test::source_path("recipes/models/tiny-16m"));
    const std::string prompt = "### Response:\n", answer = "\nA: 3 cats<|end_of_text|>";
    const std::string text = prompt + answer;
    const size_t cuts[] = {prompt.size(), text.size()};
    const CutIds cut = t->encode_cut(text, cuts);
    const auto alone = t->encode(prompt);
    REQUIRE(cut.before == std::vector<size_t>{alone.size(), cut.ids.size()});
    CHECK(std::ranges::equal(alone, std::span(cut.ids).first(alone.size())));
    CHECK(t->decode(std::span(cut.ids).subspan(alone.size())) == answer);
    CHECK(cut.ids.back() == t->eos_id());
    // Without a cut the two line breaks are one token.
    const auto joined = t->encode(text);
    CHECK(!std::ranges::equal(alone, std::span(joined).first(alone.size())));
    // A control token that a cut divides is text.
    const size_t inside[] = {prompt.size() + answer.size() - 3};
    CHECK(t->encode_cut(text, inside).ids.back() != t->eos_id());
  }

  TEST_CASE("decode(encode(x)) is x for any text") {
    const auto t = embedded();
    PhiloxStream random(3);
    for (int round = 0; round < 2000; ++round) {
      const std::string text = random_text(random, 60);
      const Ids ids = t->encode(text, {.add_bos = false, .parse_special = false});
      if (t->decode(ids) != text) FAIL_CHECK("seed 3, round " << round << ": " << text);
    }
    for (const char* text :
         {"", " ", "a\r\n\r\n b", "it's I'LL", "  x  ", "12345", "e\u0301",
          "\U0001F469\u200D\U0001F467", "<|eot_id|><|eot_id|>", "a<|begin_of_text|>b"})
      CHECK(t->decode(t->encode(text, {.add_bos = false})) == text);
  }

  TEST_CASE("hostile lengths: one letter, no spaces, white space, marks, a megabyte each") {
    const auto t = embedded();
    PhiloxStream random(9);
    std::string letters, spaces(1 << 20, ' '), words;
    while (letters.size() < (1 << 20)) letters += static_cast<char>('a' + random.below(26));
    while (words.size() < (1 << 20)) words += "\n \t";
    // Quadratic work would take hours.
    for (const std::string& text : {std::string(1 << 20, 'a'), letters, spaces, spaces + "x", words,
                                    std::string(1 << 20, '<')}) {
      const Ids ids = t->encode(text);
      CHECK(ids.size() > 1);
      CHECK(t->decode(ids, true) == text);
    }
  }

  TEST_CASE("one tokenizer serves many threads") {
    const auto t = embedded();
    const std::string text = "Threads share one tokenizer; each call has its own buffers. ";
    const Ids expected = t->encode(text);
    std::atomic<int> n_wrong = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] {
        for (int k = 0; k < 200; ++k) n_wrong += t->encode(text) != expected;
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(n_wrong == 0);
  }
}
