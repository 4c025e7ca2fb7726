#include <doctest/doctest.h>

#include "base/error.h"
#include "base/rng.h"
#include "text/support.h"
#include "text/utf8.h"

using namespace tandem;
using namespace tandem::text;

namespace {

std::string assembled(std::string_view bytes, size_t step) {
  Utf8Assembler assembler;
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += step) assembler.append(bytes.substr(i, step), out);
  assembler.finish(out);
  return out;
}

}  // namespace

TEST_SUITE("text/utf8") {
  TEST_CASE("the first malformed byte is found") {
    constexpr size_t kNone = std::string_view::npos;
    CHECK(find_invalid_utf8("") == kNone);
    CHECK(find_invalid_utf8("plain ASCII, long enough for whole words") == kNone);
    CHECK(find_invalid_utf8("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80") == kNone);
    CHECK(find_invalid_utf8(std::string_view("a\0b", 3)) == kNone);
    CHECK(find_invalid_utf8("\xF4\x8F\xBF\xBF") == kNone);  // U+10FFFF
    CHECK(find_invalid_utf8("0123456789\x80") == 10);       // continuation alone
    CHECK(find_invalid_utf8("ab\xC0\xAF") == 2);            // overlong, two bytes
    CHECK(find_invalid_utf8("ab\xE0\x80\xAF") == 2);        // overlong, three
    CHECK(find_invalid_utf8("ab\xED\xA0\x80") == 2);        // surrogate
    CHECK(find_invalid_utf8("ab\xF4\x90\x80\x80") == 2);    // above U+10FFFF
    CHECK(find_invalid_utf8("ab\xF5") == 2);
    CHECK(find_invalid_utf8("ab\xE2\x82") == 2);  // cut off
    CHECK(find_invalid_utf8("\xC3\xA9\xC3") == 2);
  }

  TEST_CASE("the error names byte and remedy") {
    const Error error = test::error_of([] { require_utf8("caf\xE9", "prompt.txt"); });
    CHECK(error.kind() == ErrorKind::input);
    CHECK(std::string(error.what()) == "prompt.txt: byte 3 (0xE9) is not UTF-8");
    CHECK(error.hint_text().find("iconv") != std::string::npos);
  }

  TEST_CASE("malformed parts become one U+FFFD each, wherever the stream is cut") {
    const std::pair<std::string, std::string> cases[] = {
        {"a\x80z", "a\uFFFDz"},
        {"\xE2\x82", "\uFFFD"},  // cut off: one part
        {"\xE2\x82z", "\uFFFDz"},
        {"\xC0\xAF", "\uFFFD\uFFFD"},            // C0 can begin nothing
        {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},  // ED A0 is no prefix of anything
        {"\xF0\x9F\x98\xF0\x9F\x98\x80", "\uFFFD\U0001F600"},
        {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
    };
    for (const auto& [bytes, expected] : cases)
      for (size_t step = 1; step <= 4; ++step) CHECK(assembled(bytes, step) == expected);
  }

  TEST_CASE("random bytes: the result is well formed and does not depend on the cuts") {
    PhiloxStream random(11);
    for (int round = 0; round < 500; ++round) {
      std::string bytes;
      for (uint32_t n = random.below(40); n > 0; --n)
        bytes +=
            static_cast<char>(random.below(4) == 0 ? random.below(128) : 128 + random.below(128));
      const std::string whole = assembled(bytes, 100);
      CHECK(find_invalid_utf8(whole) == std::string_view::npos);
      if (find_invalid_utf8(bytes) == std::string_view::npos) CHECK(whole == bytes);
      for (size_t step = 1; step <= 5; ++step) CHECK(assembled(bytes, step) == whole);
    }
  }

  TEST_CASE("trim takes Unicode white space from both ends") {
    CHECK(trim(" \t\u3000 a b\u00A0\u2003\n") == "a b");
    CHECK(trim("\x1C x\x1F") == "x");
    CHECK(trim(" \n ") == "");
    CHECK(trim("\u200Bx") == "\u200Bx");  // zero width, but not white space
  }
}
