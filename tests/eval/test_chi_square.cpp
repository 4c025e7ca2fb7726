#include <doctest/doctest.h>

#include <cmath>

#include "base/rng.h"
#include "eval/chi_square.h"

using namespace tandem;
using namespace tandem::eval;

namespace {

/// Outcomes of two samples, each drawn from 0 .. n - 1 by `draw(u)` of a uniform number.
template <class DrawA, class DrawB>
OutcomeCounts samples(int size, uint64_t seed, DrawA a, DrawB b) {
  OutcomeCounts counts;
  PhiloxStream rng(seed);
  const auto uniform = [&] { return uniform53(rng.next(), rng.next()); };
  for (int i = 0; i < size; ++i) {
    ++counts[{a(uniform())}][0];
    ++counts[{b(uniform())}][1];
  }
  return counts;
}

}  // namespace

TEST_SUITE("eval/chi-square") {
  TEST_CASE("tails agree with printed tables and closed forms") {
    // Critical values of Abramowitz and Stegun, table 26.8.
    CHECK(chi_square_tail(3.841458820694124, 1) == doctest::Approx(0.05).epsilon(1e-9));
    CHECK(chi_square_tail(18.30703805327515, 10) == doctest::Approx(0.05).epsilon(1e-9));
    CHECK(chi_square_tail(149.4492527798, 100) == doctest::Approx(0.001).epsilon(1e-6));
    // Two degrees: exp(-x / 2); one: erfc(sqrt(x / 2)).
    for (const double x : {1e-9, 0.5, 2.0, 30.0, 200.0, 1200.0})
      CHECK(chi_square_tail(x, 2) == doctest::Approx(std::exp(-x / 2)).epsilon(1e-10));
    for (const double x : {0.5, 5.0, 60.0, 400.0})
      CHECK(chi_square_tail(x, 1) == doctest::Approx(std::erfc(std::sqrt(x / 2))).epsilon(1e-10));
    CHECK(chi_square_tail(0, 7) == 1);
  }

  TEST_CASE("samples of one distribution pass as often as they should") {
    // A common outcome, some rarer, and a tail of outcomes seen once or never.
    const auto draw = [](double u) {
      return u < 0.4   ? 0
             : u < 0.6 ? 1 + static_cast<int>(u * 100) % 7
                       : 10 + static_cast<int>(u * 5000);
    };
    int below = 0;
    constexpr int kRuns = 200;
    for (uint64_t seed = 0; seed < kRuns; ++seed) {
      const TwoSampleTest t = compare_samples(samples(1000, seed, draw, draw));
      CHECK(t.cells >= 20);
      if (t.p < 0.1) ++below;
    }
    // 20 expected, standard deviation 4.2.
    CHECK(below > 5);
    CHECK(below < 38);
  }

  TEST_CASE(
      "distributions that differ are distinguished, in a common outcome or in the tail alone") {
    const auto even = [](double u) { return static_cast<int>(u * 4); };
    const auto tilted = [](double u) { return static_cast<int>(u * u * 4); };
    CHECK(compare_samples(samples(500, 1, even, tilted)).p < 1e-6);
    // A hundred outcomes of which each sample sees some five, and every other one of them.
    const auto tail = [](double u) { return u < 0.5 ? 0 : 1 + static_cast<int>(u * 200); };
    const auto sparse = [](double u) { return u < 0.5 ? 0 : 1 + 2 * static_cast<int>(u * 100); };
    int found = 0;
    for (uint64_t seed = 0; seed < 20; ++seed)
      if (compare_samples(samples(1000, seed, tail, sparse)).p < 0.01) ++found;
    CHECK(found > 10);
  }

  TEST_CASE(
      "tests of samples apart add up: one distribution passes, exchanged distributions do not") {
    const auto low = [](double u) { return static_cast<int>(u * u * 4); };
    const auto high = [](double u) { return 3 - static_cast<int>(u * u * 4); };
    // Forty small samples, by turns of either distribution.
    const auto added = [&](uint64_t seed, bool exchanged) {
      TwoSampleTest sum;
      for (uint64_t i = 0; i < 40; ++i) {
        const uint64_t stream = 1000 * seed + i;
        if (i % 2 == 0)
          sum.add(compare_samples(exchanged ? samples(50, stream, low, high)
                                            : samples(50, stream, low, low)));
        else
          sum.add(compare_samples(exchanged ? samples(50, stream, high, low)
                                            : samples(50, stream, high, high)));
      }
      return sum;
    };
    int below = 0;
    for (uint64_t seed = 0; seed < 200; ++seed) {
      const TwoSampleTest t = added(seed, false);
      CHECK(t.degrees == t.cells - 40);
      if (t.p < 0.1) ++below;
    }
    // 20 expected, standard deviation 4.2.
    CHECK(below > 5);
    CHECK(below < 38);
    CHECK(added(0, true).p < 1e-12);
  }

  TEST_CASE("nothing to compare") {
    CHECK(compare_samples({}).p == 1);
    CHECK(compare_samples({{{3}, {50, 50}}}).p == 1);
    TwoSampleTest none;
    none.add(compare_samples({}));
    CHECK(none.p == 1);
  }
}
