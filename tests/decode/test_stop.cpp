#include <doctest/doctest.h>

#include <algorithm>

#include "base/rng.h"
#include "decode/stop.h"

using tandem::decode::StopMatcher;

namespace {

/// What is shown in all when `text` comes in pieces of the given lengths.
std::string shown(const std::vector<std::string>& stops, std::string_view text,
                  const std::vector<size_t>& pieces, bool* matched = nullptr) {
  StopMatcher m(stops);
  std::string out;
  for (const size_t n : pieces) {
    out += m.push(text.substr(0, n));
    text.remove_prefix(std::min(n, text.size()));
  }
  out += m.push(text);
  out += m.flush();
  if (matched != nullptr) *matched = m.matched();
  return out;
}

/// The definition: text up to the stop that is complete first; of several, the longest.
std::string expected(const std::vector<std::string>& stops, std::string_view text, bool& matched) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops)
      if (!stop.empty() && text.substr(0, end).ends_with(stop))
        longest = std::max(longest, stop.size());
    matched = longest > 0;
    if (matched) return std::string(text.substr(0, end - longest));
  }
  matched = false;
  return std::string(text);
}

}  // namespace

TEST_SUITE("decode/stop") {
  TEST_CASE("a stop string is cut wherever pushes split it, and nothing of it shows early") {
    const std::string text = "one two END three";
    for (size_t a = 0; a <= text.size(); ++a)
      for (size_t b = 0; a + b <= text.size(); ++b) {
        bool matched = false;
        CHECK(shown({"END"}, text, {a, b}, &matched) == "one two ");
        CHECK(matched);
      }
    StopMatcher m({"END"});
    CHECK(m.push("one E") == "one ");
    CHECK(m.push("N") == "");
    CHECK_FALSE(m.matched());
    CHECK(m.push("Q") == "ENQ");
    CHECK(m.push("END and more") == "");
    CHECK(m.matched());
    CHECK(m.push("later") == "");
    CHECK(m.flush() == "");
  }

  TEST_CASE("held text that did not become a stop comes with flush") {
    StopMatcher m({"\n\n"});
    CHECK(m.push("line\n") == "line");
    CHECK(m.flush() == "\n");
    CHECK(m.flush() == "");
    CHECK_FALSE(m.matched());
  }

  TEST_CASE("a stop that overlaps its own beginning is found") {
    CHECK(shown({"aab"}, "aaab", {1, 1, 1}) == "a");
    CHECK(shown({"abab c"}, "ababab c", {2, 2, 2}) == "ab");
    CHECK(shown({"abac"}, "ababac", {3}) == "ab");
  }

  TEST_CASE("of two stops the one that is complete first decides, however the text is split") {
    for (const std::vector<size_t>& pieces : {std::vector<size_t>{}, {1}, {2}, {3}, {1, 1, 1}}) {
      CHECK(shown({"abcd", "bc"}, "abcd", pieces) == "a");
      CHECK(shown({"bc", "abc"}, "abcd", pieces) == "");  // both end with the c: the longer
      CHECK(shown({"xyz", "b"}, "xyb!", pieces) == "xy");
    }
  }

  TEST_CASE("no stops, and empty ones: everything shows at once") {
    for (const std::vector<std::string>& stops : {std::vector<std::string>{}, {""}}) {
      StopMatcher m(stops);
      CHECK(m.push("any\n") == "any\n");
      CHECK(m.push("") == "");
      CHECK_FALSE(m.matched());
    }
  }

  TEST_CASE("hidden bytes take part in a match, and never show") {
    StopMatcher m({"a<x>b", "<y>"});
    CHECK(m.push("1a") == "1");
    CHECK(m.push("<x>", false) == "");
    CHECK(m.push("c") == "ac");  // no stop: the text around the hidden bytes is whole
    CHECK(m.push("<y", false) == "");
    CHECK(m.push(">") == "");
    CHECK(m.matched());
  }

  TEST_CASE("random texts of two letters, random stops, random pieces: as by the definition") {
    tandem::PhiloxStream draw(11);
    const auto word = [&](uint32_t n) {
      std::string s;
      while (n-- > 0) s += "ab"[draw.below(2)];
      return s;
    };
    for (int run = 0; run < 5000; ++run) {
      std::vector<std::string> stops;
      for (uint32_t n = draw.below(3); n > 0; --n) stops.push_back(word(1 + draw.below(7)));
      const std::string text = word(draw.below(24));
      std::vector<size_t> pieces;
      for (int i = 0; i < 12; ++i) pieces.push_back(draw.below(4));
      CAPTURE(run);
      CAPTURE(text);
      bool matched = false, want_matched = false;
      const std::string want = expected(stops, text, want_matched);
      REQUIRE(shown(stops, text, pieces, &matched) == want);
      REQUIRE(matched == want_matched);
    }
  }
}
