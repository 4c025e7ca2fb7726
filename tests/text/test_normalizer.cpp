#include <doctest/doctest.h>

#include <string>

#include "error_text.h"
#include "text/normalizer.h"

using namespace tandem;
using namespace tandem::text;

TEST_SUITE("text/normalizer") {
  TEST_CASE("forms") {
    CHECK(normalize("e\u0301", NormalForm::nfc) == "\u00E9");
    CHECK(normalize("\u00E9", NormalForm::nfd) == "e\u0301");
    CHECK(normalize("\uFB01", NormalForm::nfc) == "\uFB01");
    CHECK(normalize("\uFB01", NormalForm::nfkc) == "fi");
    CHECK(normalize("\uFB01\u00E9", NormalForm::nfkd) == "fie\u0301");
    CHECK(normalize("\u1100\u1161\u11A8", NormalForm::nfc) == "\uAC01");  // Hangul
    CHECK(normalize("\u212B", NormalForm::nfc) == "\u00C5");              // singleton
    CHECK(normalize("\u0958", NormalForm::nfc) == "\u0915\u093C");        // composition exclusion
  }

  TEST_CASE("marks are ordered, blocked ones stay, text around is untouched") {
    // U+0323 (class 220) goes before U+0301 (class 230), then s + U+0323 composes.
    CHECK(normalize("s\u0301\u0323", NormalForm::nfc) == "\u1E63\u0301");
    CHECK(normalize("plain e\u0301 plain", NormalForm::nfc) == "plain \u00E9 plain");
    CHECK(normalize("\u0301", NormalForm::nfc) == "\u0301");
    CHECK(normalize("", NormalForm::nfc) == "");
    CHECK(normalize("a\u00B2b\u0301c", NormalForm::nfkc) == "a2b\u0301c");
  }

  TEST_CASE("a run of 300,000 marks is ordered in far less than quadratic time") {
    std::string text = "a", low, high;
    for (int i = 0; i < 150000; ++i) {
      text += "\u0302\u0323";
      low += "\u0323";
      high += "\u0302";
    }
    CHECK(normalize(text, NormalForm::nfd) == "a" + low + high);
  }

  TEST_CASE("prepend and replace") {
    const std::vector<NormalizerStep> steps = {{NormalizerStep::Kind::prepend, {}, "_", ""},
                                               {NormalizerStep::Kind::replace, {}, " ", "_"}};
    CHECK(apply_steps(steps, "a  b") == "_a__b");
    CHECK(apply_steps(steps, "") == "");
  }

  TEST_CASE("replacements that multiply end before memory does") {
    const NormalizerStep thousand{NormalizerStep::Kind::replace, {}, "a", std::string(1000, 'a')};
    CHECK(apply_steps({thousand}, "a").size() == 1000);
    const auto grown = [&](size_t n, std::string_view text) {
      return test::input_error_text(
          [&] { apply_steps(std::vector<NormalizerStep>(n, thousand), text); });
    };
    CHECK(grown(2, "a") ==
          "the tokenizer's normalizer: expands a text to more than 4160 bytes from 1 bytes");
    CHECK(grown(6, "a").find("expands a text to more than") != std::string::npos);
    CHECK(grown(1, std::string(100, 'a')).find("expands a text to more than 10496 bytes") !=
          std::string::npos);
    // What alphabets need: three bytes for a space, the longest decomposition.
    const NormalizerStep mark{NormalizerStep::Kind::replace, {}, " ", "\u2581"};
    CHECK(apply_steps({mark}, std::string(100'000, ' ')).size() == 300'000);
    std::string ligatures;
    for (int i = 0; i < 1000; ++i) ligatures += "\uFDFA";
    CHECK(apply_steps({{.kind = NormalizerStep::Kind::unicode,
                        .form = NormalForm::nfkd,
                        .text = {},
                        .replacement = {}},
                       mark},
                      ligatures)
              .size() > 30'000);
  }
}
