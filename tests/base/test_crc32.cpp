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

  TEST_CASE("every flipped bit changes it") {
    std::string text(67, 'x');
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
