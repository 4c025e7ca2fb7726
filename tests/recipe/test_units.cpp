#include <doctest/doctest.h>

#include "recipe/units.h"

using namespace tandem::recipe;

namespace {

template <class T>
std::string problem(std::string_view text) {
  T value{};
  return parse_units(text, value);
}

template <class T>
T parsed(std::string_view text) {
  T value{};
  CHECK_MESSAGE(parse_units(text, value).empty(), text);
  return value;
}

}  // namespace

TEST_SUITE("recipe/units") {
  TEST_CASE("byte sizes need a suffix, binary or decimal") {
    CHECK(parsed<ByteSize>("512MiB") == int64_t{512} << 20);
    CHECK(parsed<ByteSize>("24GB") == 24000000000);
    CHECK(parsed<ByteSize>("1.5KiB") == 1536);
    CHECK(parsed<ByteSize>("7B") == 7);
    for (const char* bad : {"512", "512M", "MiB", "", "1e3 MiB", "x7B", "--1B", "1MiBB"})
      CHECK(problem<ByteSize>(bad) == "a byte size with its unit, such as 512MiB or 24GB");
    CHECK(problem<ByteSize>("9000TiB") == "a byte size below 8192TiB");
    CHECK(problem<ByteSize>("infB") == "a byte size below 8192TiB");
    CHECK(problem<ByteSize>("nanB") == "a byte size below 8192TiB");
  }

  TEST_CASE("counts take Ki and Mi, a bare k is explained") {
    CHECK(parsed<TokenCount>("4096") == 4096);
    CHECK(parsed<TokenCount>("96Ki") == 98304);
    CHECK(parsed<TokenCount>("1Mi") == 1048576);
    CHECK(problem<TokenCount>("32k") ==
          "a count such as 4096 or 4Ki (a bare k could mean 1000 or 1024)");
    CHECK(problem<TokenCount>("32K") == problem<TokenCount>("32k"));
    CHECK(problem<TokenCount>("1.5Ki") == "a count such as 4096, 96Ki or 1Mi");
    CHECK(problem<TokenCount>("9223372036854775807Mi") == "a count below 2^53");
  }

  TEST_CASE("fractions, times and numbers") {
    CHECK(parsed<Fraction>("25%") == doctest::Approx(0.25));
    CHECK(parsed<Fraction>("0.25") == doctest::Approx(0.25));
    CHECK(parsed<Duration>("250ms") == doctest::Approx(0.25));
    CHECK(parsed<Duration>("5min") == doctest::Approx(300));
    CHECK(problem<Duration>("10") == "a time with its unit, such as 250ms, 10s or 5min");
    CHECK(parsed<double>("1e-3") == doctest::Approx(1e-3));
    for (const char* bad : {"nan", "inf", "1e999", "0x10", "1,5", " 1", "1 "})
      CHECK(problem<double>(bad) == "a number");
    for (const char* bad : {"1.0", "9223372036854775808", "1_000", "+-1", ""})
      CHECK(problem<int64_t>(bad) == "an integer");
  }

  TEST_CASE("every value reads back from its own text") {
    for (int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{1024}, int64_t{3} << 30,
                          (int64_t{1} << 40) + 1})
      CHECK(parsed<ByteSize>(units_text(ByteSize{bytes})) == bytes);
    for (double x : {0.1, 1.0 / 3, 1e-9, 12345.678}) {
      CHECK(parsed<Fraction>(units_text(Fraction{x})).value == x);
      CHECK(parsed<Duration>(units_text(Duration{x})).seconds == x);
    }
    CHECK(units_text(ByteSize{512 << 20}) == "512MiB");
  }
}
