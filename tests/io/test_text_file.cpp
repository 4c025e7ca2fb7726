#include <doctest/doctest.h>

#include "error_text.h"
#include "io/json.h"
#include "io/text_file.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::io;
using namespace std::string_literals;
using test::input_error_text;

namespace {

/// ASCII text in characters of `width` bytes.
std::string wide(std::string_view text, size_t width, bool big_endian) {
  std::string bytes;
  for (const char c : text) {
    std::string one(width, '\0');
    (big_endian ? one.back() : one.front()) = c;
    bytes += one;
  }
  return bytes;
}

}  // namespace

TEST_SUITE("io/text_file") {
  TEST_CASE("one byte order mark in front is dropped, others are text") {
    CHECK(text_in("\xEF\xBB\xBF"
                  "abc",
                  "f") == "abc");
    CHECK(text_in("\xEF\xBB\xBF", "f") == "");
    CHECK(text_in("\xEF\xBB\xBF\xEF\xBB\xBFx", "f") == "\xEF\xBB\xBFx");
    for (const std::string& same :
         {""s, "a"s, "\xEF\xBB"s, "a\xEF\xBB\xBF"s, "\0\0"s, "a\0"s, "a\0bc"s, "caf\xE9"s})
      CHECK(text_in(same, "f") == same);
    const test::TemporaryFolder folder;
    CHECK(read_text_file(folder.write("f", "\xEF\xBB\xBF two\n")) == " two\n");
    CHECK(read_text_file(folder.write("g", "\xEF\xBB\xBF")) == "");
  }

  TEST_CASE("UTF-16 and UTF-32 are refused with the command that converts them") {
    const test::TemporaryFolder folder;
    int n = 0;
    for (const std::string& text : {"{}"s, "Once upon a time"s, std::string(200, 'x')})
      for (const auto& [encoding, bytes] :
           {std::pair{"UTF-16"s, "\xFF\xFE" + wide(text, 2, false)},
            {"UTF-16", "\xFE\xFF" + wide(text, 2, true)},
            {"UTF-16", "\xFF\xFEplain " + text},
            {"UTF-32", "\xFF\xFE\0\0"s + wide(text, 4, false)},
            {"UTF-32", "\0\0\xFE\xFF"s + wide(text, 4, true)},
            {"UTF-16LE", wide(text, 2, false)},
            {"UTF-16LE", "\x1C\x20"s + wide("Once upon", 2, false)},  // a quotation mark
            {"UTF-16BE", wide(text, 2, true)},
            {"UTF-32LE", wide(text, 4, false)},
            {"UTF-32BE", wide(text, 4, true)}}) {
        CAPTURE(encoding);
        const std::string path = folder.write(std::to_string(n++), bytes).string();
        const std::string says = path + ": is " + encoding + " text, expected UTF-8";
        CHECK(input_error_text([&] { read_text_file(path); }) == says);
        CHECK(input_error_text([&] { parse_json(bytes, path); }) == says);
        try {
          text_in(bytes, "f");
        } catch (const Error& e) {
          CHECK(e.hint_text() == "convert it first: iconv -f " + encoding + " -t UTF-8 FILE");
        }
      }
  }
}
