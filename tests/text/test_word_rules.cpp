#include <doctest/doctest.h>

#include "base/rng.h"
#include "text/char_class.h"
#include "text/regex.h"
#include "text/support.h"
#include "text/utf8.h"
#include "text/word_rules.h"

using namespace tandem;
using namespace tandem::text;

namespace {

const char* const kPatterns[] = {kGpt2Pattern, kQwen2Pattern, kLlama3Pattern};

/// What patterns tell apart, and what looks like it: letters that are another case of s and k,
/// marks, digits of other scripts, spaces that are none, ends of the ranges of UTF-8.
constexpr const char* kParts[] = {"'",
                                  "'",
                                  "s",
                                  "S",
                                  "\u017F",
                                  "t",
                                  "T",
                                  "re",
                                  "R",
                                  "e",
                                  "E",
                                  "vE",
                                  "m",
                                  "M",
                                  "l",
                                  "L",
                                  "LL",
                                  "d",
                                  "D",
                                  "k",
                                  "\u212A",
                                  "\u0130",
                                  "\u0131",
                                  "a",
                                  "\u00E9",
                                  "\u01C5",
                                  "\u0E01",
                                  "\u4E2D",
                                  "\u0301",
                                  "\u0903",
                                  "\u20DD",
                                  "1",
                                  "7",
                                  "\u0663",
                                  "\u2167",
                                  "\u00BD",
                                  "\u3007",
                                  " ",
                                  " ",
                                  "  ",
                                  "\t",
                                  "\v",
                                  "\f",
                                  "\r",
                                  "\n",
                                  "\r\n",
                                  "\n\r",
                                  "\x1C",
                                  "\u0085",
                                  "\u00A0",
                                  "\u1680",
                                  "\u180E",
                                  "\u2003",
                                  "\u200B",
                                  "\u2028",
                                  "\u3000",
                                  "\uFEFF",
                                  ".",
                                  "!?",
                                  "_",
                                  "$",
                                  "\u2019",
                                  "\u203F",
                                  "\x7F",
                                  "\u07FF",
                                  "\u0800",
                                  "\uD7FF",
                                  "\uE000",
                                  "\uFFFF",
                                  "\U00010000",
                                  "\U0001F469\u200D",
                                  "\U0002A6DF",
                                  "\U0010FFFF"};

std::string random_text(PhiloxStream& random) {
  std::string text;
  for (uint32_t n = 1 + random.below(14); n > 0; --n) {
    const std::string part = kParts[random.below(std::size(kParts))];
    // Now and then a long run.
    for (uint32_t k = random.below(12) == 0 ? random.below(40) : 1; k > 0; --k) text += part;
  }
  return text;
}

/// Ends of the words.
std::vector<size_t> by_rules(const WordRules& rules, std::string_view text) {
  std::vector<size_t> ends;
  for (size_t at = 0; at < text.size();) ends.push_back(at = rules.end_of_word(text, at));
  return ends;
}

std::vector<size_t> by_regex(const Regex& regex, std::string_view text) {
  std::vector<size_t> ends;
  RegexScratch scratch;
  Regex::Match match{};
  for (size_t at = 0; regex.find(text, at, scratch, match); at = match.end) {
    REQUIRE(match.begin == at);  // words leave no gap
    ends.push_back(match.end);
  }
  return ends;
}

}  // namespace

TEST_SUITE("text/word_rules") {
  TEST_CASE("known patterns are known, others are not") {
    for (const char* pattern : kPatterns) CHECK(WordRules::of(pattern).has_value());
    CHECK_FALSE(WordRules::of(std::string(kGpt2Pattern) + "|x").has_value());
    CHECK_FALSE(WordRules::of("").has_value());
  }

  TEST_CASE("words are those that PCRE2 finds, on texts of what the patterns tell apart") {
    for (const char* pattern : kPatterns) {
      const Regex regex(pattern, "test");
      const WordRules rules = WordRules::of(pattern).value();
      PhiloxStream random(17);
      size_t n_wrong = 0;
      for (int round = 0; round < 6000; ++round) {
        const std::string text = random_text(random);
        if (by_rules(rules, text) == by_regex(regex, text)) continue;
        if (++n_wrong < 5) FAIL_CHECK(pattern << ", seed 17, round " << round << ": " << text);
      }
      CHECK(n_wrong == 0);
    }
  }

  TEST_CASE("every character alone and between others") {
    for (const char* pattern : kPatterns) {
      const Regex regex(pattern, "test");
      const WordRules rules = WordRules::of(pattern).value();
      for (const char* format : {"{} ", "a{}1", " {}\n"}) {
        std::string text;
        for (char32_t c = 0; c <= 0x10FFFF; c += c < 0x3400 ? 1 : 13) {
          if (c >= 0xD800 && c <= 0xDFFF) continue;
          std::string character;
          append_utf8(character, c);
          text += fmt::format(fmt::runtime(format), character);
        }
        CHECK(by_rules(rules, text) == by_regex(regex, text));
      }
    }
  }

  TEST_CASE("classes: white space as another library has it") {
    const CharClasses& classes = CharClasses::get();
    size_t n_wrong = 0;
    for (char32_t c = 0; c <= 0x10FFFF; ++c)
      if (c < 0xD800 || c > 0xDFFF)
        n_wrong += (classes.of(c) == CharClass::space) != is_white_space(c);
    CHECK(n_wrong == 0);
    CHECK(classes.of('a') == CharClass::letter);
    CHECK(classes.of(U'\u4E2D') == CharClass::letter);
    CHECK(classes.of(U'\u2167') == CharClass::number);
    CHECK(classes.of(U'\u0301') == CharClass::other);
    CHECK(classes.of(U'\U0010FFFF') == CharClass::other);
  }

  TEST_CASE("long runs: as PCRE2, whose limits hold them") {
    const std::string blanks(300'000, ' '), lines(100'000, '\n');
    for (const char* pattern : kPatterns) {
      const Regex regex(pattern, "test");
      const WordRules rules = WordRules::of(pattern).value();
      for (const std::string& text :
           {blanks, blanks + "x", blanks + "\n" + blanks + "1", lines + blanks,
            blanks + lines + ".", std::string(300'000, 'a'), std::string(300'000, '7'),
            std::string(300'000, '!')})
        CHECK(by_rules(rules, text) == by_regex(regex, text));
    }
  }

  TEST_CASE("a pattern that is linear passes on 10 MB, one that is not is refused with a remedy") {
    const std::string blanks(10'000'000, ' ');
    RegexScratch scratch;
    Regex::Match match{};
    const Regex linear(std::string(kLlama3Pattern) + "|unknown", "test");
    CHECK(linear.find(blanks, 0, scratch, match));
    CHECK(match.end == blanks.size());
    const Regex quadratic(R"(\s+\s+[xy])", "test");
    const Error error = test::error_of([&] { quadratic.find(blanks, 0, scratch, match); });
    CHECK(error.kind() == ErrorKind::input);
    CHECK(error.hint_text().find("simplify it") != std::string::npos);
  }
}
