#include <doctest/doctest.h>

#include "base/rng.h"
#include "text/streamer.h"
#include "text/support.h"

using namespace tandem;
using namespace tandem::text;

TEST_SUITE("text/streamer") {
  TEST_CASE("a character split over tokens comes out when it is complete") {
    const auto tokenizer = test::from_json(test::byte_level_json({}));
    Streamer streamer(*tokenizer);
    const std::string emoji = "\U0001F600";
    for (size_t i = 0; i < 3; ++i) CHECK(streamer.push(static_cast<uint8_t>(emoji[i])) == "");
    CHECK(streamer.push(static_cast<uint8_t>(emoji[3])) == emoji);
    CHECK(streamer.push('x') == "x");
    CHECK(streamer.flush() == "");
  }

  TEST_CASE("an unfinished tail is U+FFFD on flush, and the streamer can be used again") {
    const auto tokenizer = test::from_json(test::byte_level_json({}));
    Streamer streamer(*tokenizer);
    CHECK(streamer.push(0xF0) == "");
    CHECK(streamer.push(0x9F) == "");
    CHECK(streamer.flush() == "\uFFFD");
    CHECK(streamer.push('a') == "a");
  }

  TEST_CASE("special tokens and ids outside the vocabulary") {
    const auto tokenizer =
        test::from_json(test::byte_level_json({}, {test::added_token("<end>", true)}));
    Streamer skips(*tokenizer), keeps(*tokenizer, {.skip_special = false});
    CHECK(skips.push(256) == "");
    CHECK(keeps.push(256) == "<end>");
    for (const int32_t id : {-1, 257, 1 << 30}) CHECK(keeps.push(id) == "");
  }

  TEST_CASE("joined pieces equal decode for any ids") {
    const auto tokenizer = test::from_json(
        test::byte_level_json({{"\xC3", "\xA9"}, {"\x9F", "\x98"}, {"a", "b"}},
                              {test::added_token("<s>", true), test::added_token("tool", false)}));
    PhiloxStream random(5);
    for (int round = 0; round < 300; ++round) {
      std::vector<int32_t> ids;
      for (uint32_t n = random.below(30); n > 0; --n)
        ids.push_back(static_cast<int32_t>(random.below(3) == 0 ? 250 + random.below(12)
                                                                : 128 + random.below(128)));
      for (const bool skip : {false, true}) {
        Streamer streamer(*tokenizer, {.skip_special = skip});
        std::string joined;
        for (const int32_t id : ids) joined += streamer.push(id);
        joined += streamer.flush();
        CHECK(joined == tokenizer->decode(ids, skip));
      }
    }
  }
}
