#include <doctest/doctest.h>

#include "error_text.h"
#include "ffn/thresholds.h"

using namespace tandem;

TEST_SUITE("ffn/thresholds") {
  TEST_CASE("what is written is read") {
    const ffn::Thresholds t{
        .model = "tiny", .fingerprint = "abc", .keep = 0.5, .values = {0.125f, 0.0f, 3.5f}};
    const ffn::Thresholds read = ffn::parse_thresholds(ffn::thresholds_text(t), "file");
    CHECK(read.model == t.model);
    CHECK(read.fingerprint == t.fingerprint);
    CHECK(read.keep == t.keep);
    CHECK(read.values == t.values);
  }

  TEST_CASE("damaged files are refused by name, and cut ones at every place") {
    const auto error = [](const char* thresholds) {
      return test::error_text([&] {
        (void)ffn::parse_thresholds(
            std::string(R"({"format": "ffn-thresholds/1", "model": "m", )"
                        R"("fingerprint": "f", "keep": 0.5, "thresholds": )") +
                thresholds + "}",
            "t.json");
      });
    };
    CHECK(error("[0.5, -1]") ==
          "t.json: thresholds[1]: expected a number of at least 0, found the number -1");
    CHECK(error("[\"NaN\"]") ==
          "t.json: thresholds[0]: expected a number of at least 0, found the string 'NaN'");
    CHECK(error("[1e300]").starts_with("t.json: thresholds[0]: expected a number of at least 0"));
    CHECK(error("[]") == "t.json: thresholds: expected 1 to 4096 numbers, found 0");
    const std::string text =
        ffn::thresholds_text({.model = "m", .fingerprint = "f", .keep = 1, .values = {1.0f, 2.0f}});
    for (size_t n = 0; n + 2 < text.size(); ++n)
      CHECK_THROWS_AS((void)ffn::parse_thresholds(std::string_view(text).substr(0, n), "t"), Error);
  }
}
