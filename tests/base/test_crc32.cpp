#include <doctest/doctest.h>

#include <string>

#include "base/crc32.h"

using namespace tandem;

TEST_SUITE("base/crc32") {
  TEST_CASE("known values, in one piece and in two") {
    const auto of = [](std::string_view text, uint32_t before = 0) {
      return crc32(std::as_bytes(std::span(text)), before);
    };
    CHECK(of("") == 0);
    CHECK(of("123456789") == 0xcbf43926);  // the check value of its definition
    CHECK(of("The quick brown fox jumps over the lazy dog") == 0x414fa339);
    const std::string text = "The quick brown fox jumps over the lazy dog";
    for (size_t n = 0; n <= text.size(); ++n)
      CHECK(of(std::string_view(text).substr(n), of(std::string_view(text).substr(0, n))) ==
            0x414fa339);
  }

  TEST_CASE("long texts, at any address, are as their short pieces") {
    std::string text(700, ' ');
    for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * i * 31 + i / 7);
    const auto bytes = std::as_bytes(std::span(text));
    for (size_t begin = 0; begin < 17; ++begin)
      for (size_t n = 0; begin + n <= text.size(); n += n < 200 ? 1 : 41) {
        uint32_t pieces = 0;
        for (size_t i = 0; i < n; i += 5)  // too short for more than the tables
          pieces = crc32(bytes.subspan(begin + i, std::min<size_t>(5, n - i)), pieces);
        REQUIRE(crc32(bytes.subspan(begin, n)) == pieces);
      }
  }

  TEST_CASE("every flipped bit changes it") {
    std::string text(83, 'x');
    const auto sum = [&] { return crc32(std::as_bytes(std::span(text))); };
    const uint32_t whole = sum();
    for (char& c : text)
      for (int bit = 0; bit < 8; ++bit) {
        c = static_cast<char>(c ^ (1 << bit));
        CHECK(sum() != whole);
        c = static_cast<char>(c ^ (1 << bit));
      }
    CHECK(sum() == whole);
  }
}
