#include "kv/log_u.h"
#include "worst.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <numbers>
#include <string>

using namespace tandem::kv;

namespace {

struct Tables {
  int bits, tables;
};
constexpr Tables kTables[] = {{8, 75}, {9, 120}, {10, 150}, {10, 170}, {10, 220}, {11, 300}};

struct Golden {
  double cosine;
  const char* u[6];  // in the order of kTables, as printed
};
constexpr Golden kGolden[] = {
    {-0.9,
     {"9.0385542e-11", "4.7933826e-12", "1.54631e-13", "1.98772e-13", "3.33339e-13",
      "1.27914e-14"}},
    {-0.6, {"9.18619745e-6", "2.06226e-6", "2.81446e-7", "3.61763e-7", "6.06573e-7", "9.84314e-8"}},
    {-0.4,
     {"3.22563805e-4", "1.13777236e-4", "2.43785331e-5", "3.13180523e-5", "5.24383117e-5",
      "1.33387256e-5"}},
    {-0.2,
     {"4.42679324e-3", "2.20496727e-3", "6.69115912e-4", "8.57293801e-4", "1.42589987e-3",
      "5.11795525e-4"}},
    {0,
     {"3.50831429e-2", "2.33900197e-2", "9.68367281e-3", "1.22889505e-2", "1.99585350e-2",
      "9.71008892e-3"}},
    {0.1,
     {"8.38190983e-2", "6.36584398e-2", "3.07446997e-2", "3.85996977e-2", "6.10447887e-2",
      "3.44795609e-2"}},
    {0.2, {".179648045", ".153405072", "8.67366180e-2", ".106951860", ".161816159", ".106251935"}},
    {0.3, {".341588879", ".321595468", ".213667278", ".255921832", ".360978024", ".275202884"}},
    {0.5, {".795558423", ".822103867", ".735550889", ".795585511", ".895957324", ".862270463"}},
    {0.7, {".995624554", ".998724399", ".997676371", ".999142454", ".999932207", ".999940633"}},
    {0.9, {"1.0", "1.0", "1.0", "1.0", "1.0", "1.0"}},
};

/// `value` rounded to as many digits as `text` shows, read back.
double as_printed(double value, const std::string& text) {
  const std::string digits = text.substr(0, text.find('e'));
  const auto n = static_cast<int>(digits.size()) - 1;  // without the point
  return std::stod(fmt::format("{:.{}e}", value, n - 1));
}

}  // namespace

TEST_SUITE("kv/log_u") {
  // A formula that loses every digit of small probabilities.
  TEST_CASE("inclusion probabilities to the digits of the golden table") {
    for (const Golden& row : kGolden)
      for (size_t i = 0; i < 6; ++i) {
        CAPTURE(row.cosine);
        CAPTURE(kTables[i].tables);
        const double u = inclusion_probability(row.cosine, kTables[i].bits, kTables[i].tables, 2);
        CHECK(as_printed(u, row.u[i]) == std::stod(row.u[i]));
      }
  }

  TEST_CASE("the ends") {
    CHECK(inclusion_probability(-1, 10, 150, 2) == 0);
    CHECK(inclusion_probability(1, 10, 150, 2) == 1);
    CHECK(inclusion_probability(-1.5, 10, 150, 2) == 0);
    CHECK(inclusion_probability(1.5, 10, 150, 2) == 1);
    CHECK(inclusion_probability(0.999, 10, 300, 2) == 1);
    CHECK(inclusion_probability(0.3, 10, 3, 4) == 0);
  }

  TEST_CASE("any number of hits: the closed forms") {
    for (const double c : {-0.8, -0.3, 0.0, 0.4, 0.8, 0.95}) {
      CAPTURE(c);
      const double x = std::pow(1 - std::acos(c) / std::numbers::pi, 4);
      CHECK(inclusion_probability(c, 4, 10, 1) ==
            doctest::Approx(-std::expm1(10 * std::log1p(-x))).epsilon(1e-12));
      CHECK(inclusion_probability(c, 4, 10, 2) ==
            doctest::Approx(-std::expm1(9 * std::log1p(-x) + std::log1p(9 * x))).epsilon(1e-10));
      CHECK(inclusion_probability(c, 4, 10, 10) == doctest::Approx(std::pow(x, 10)).epsilon(1e-12));
      // Of three tables, at least two: 3 x^2 (1 - x) + x^3.
      CHECK(inclusion_probability(c, 4, 3, 2) ==
            doctest::Approx(x * x * (3 - 2 * x)).epsilon(1e-12));
    }
  }

  TEST_CASE("interpolation in 1024 intervals is within 5e-5") {
    for (const Tables& t : kTables) {
      constexpr int kIntervals = 1024;
      const auto table = log_u_table(t.bits, t.tables, 2, 1e-4, kIntervals);
      REQUIRE(table.size() == kIntervals + 1);
      double worst = 0;
      for (int i = 0; i < 8 * kIntervals; ++i) {
        const double x = i / 8.0, low = std::floor(x);
        const auto at = static_cast<size_t>(low);
        const double value = table[at] + (x - low) * (double{table[at + 1]} - table[at]);
        const double u = inclusion_probability(-1 + 2 * x / kIntervals, t.bits, t.tables, 2);
        worst = tandem::test::worse(worst, std::abs(value - std::log(u + 1e-4)));
      }
      CHECK(worst <= 5e-5);
    }
  }

  TEST_CASE("without a floor the log ends at log(1e-30)") {
    const auto table = log_u_table(10, 150, 2, 0, 1024);
    CHECK(table.front() == doctest::Approx(std::log(1e-30)));
    CHECK(table.back() == 0.0f);
    for (size_t i = 1; i < table.size(); ++i) CHECK(table[i] >= table[i - 1]);
  }
}
