#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "bench/stats.h"

using namespace tandem;
using namespace tandem::bench;

TEST_SUITE("bench/stats") {
  TEST_CASE("percentiles interpolate between order statistics") {
    const std::vector<double> x = {10, 20, 30, 40, 50};
    CHECK(percentile(x, 0) == 10);
    CHECK(percentile(x, 0.5) == 30);
    CHECK(percentile(x, 1) == 50);
    CHECK(percentile(x, 0.9) == doctest::Approx(46));  // position 3.6
    CHECK(percentile(x, 0.99) == doctest::Approx(49.6));
    const std::vector<double> one = {7};
    CHECK(percentile(one, 0.3) == 7);
    CHECK_THROWS_AS(percentile(std::vector<double>{}, 0.5), Error);
  }

  TEST_CASE("summary of a known set, in any order") {
    const std::vector<double> x = {4, 1, 3, 2};
    const Summary s = summarize(x);
    CHECK(s.n == 4);
    CHECK(s.mean == 2.5);
    CHECK(s.stddev == doctest::Approx(std::sqrt(5.0 / 3.0)));
    CHECK(s.min == 1);
    CHECK(s.p50 == 2.5);
    CHECK(s.max == 4);
    CHECK(summarize(std::vector<double>{5}).stddev == 0);
    CHECK_THROWS_AS(summarize(std::vector<double>{}), Error);
  }

  TEST_CASE("the robust deviation is the ordinary one for normal samples, and ignores outliers") {
    PhiloxStream stream(1);
    std::vector<double> x;
    for (int i = 0; i < 20000; ++i) {
      double sum = -6;
      for (int j = 0; j < 12; ++j) sum += stream.uniform();
      x.push_back(100 + 2 * sum);
    }
    CHECK(robust_stddev(x) == doctest::Approx(2).epsilon(0.03));
    x[0] = 1e9;
    CHECK(robust_stddev(x) == doctest::Approx(2).epsilon(0.03));
  }

  TEST_CASE("warnings name what is odd") {
    std::vector<double> x;
    for (int i = 0; i < 40; ++i) x.push_back(10 + 0.01 * (i % 5));
    CHECK(sample_warnings("decode", x).empty());
    x[0] = 12;  // slow start, but within 5 %
    auto w = sample_warnings("decode", x);
    REQUIRE(w.size() == 1);
    CHECK(w[0].find("decode: the first sample (12)") == 0);
    x[0] = 10;
    x[20] = 12;
    w = sample_warnings("decode", x);
    REQUIRE(w.size() == 1);
    CHECK(w[0].find("1 of 40 samples") != std::string::npos);
    for (size_t i = 0; i < x.size(); ++i) x[i] = i % 2 ? 10 : 13;
    w = sample_warnings("decode", x);
    REQUIRE(w.size() == 1);
    CHECK(w[0].find("standard deviation is 13") != std::string::npos);
  }

  TEST_CASE("samples are steady unless many lie apart, or a few very far") {
    std::vector<double> x(40, 10);
    CHECK(steadiness(x).is_steady());
    CHECK(steadiness(x).text().empty());
    for (size_t i = 0; i < 4; ++i) x[i] = 14;  // a tenth
    CHECK(steadiness(x).is_steady());
    x[4] = 14;
    CHECK(steadiness(x).outside == doctest::Approx(0.125));
    CHECK(steadiness(x).text() ==
          "not steady: 12 % of 40 samples lie more than 25 % from the median");
    x.assign(40, 10);
    x[7] = 200;
    CHECK(steadiness(x).text() ==
          "not steady: the standard deviation of 40 samples is 204 % of the mean");
    CHECK(steadiness(std::vector<double>{1, 9}).is_steady());
  }

  TEST_CASE("the bootstrap interval covers the true median 95 % of the time") {
    PhiloxStream stream(2);
    int covered = 0;
    constexpr int kTrials = 300;
    for (int t = 0; t < kTrials; ++t) {
      std::vector<double> x(41);
      for (double& v : x) v = stream.uniform();
      const Interval ci = bootstrap_median_interval(x, 300, 7);
      CHECK(ci.low <= median(x));
      CHECK(median(x) <= ci.high);
      covered += ci.low <= 0.5 && 0.5 <= ci.high;
    }
    // Binomial(300, 0.95): mean 285, standard deviation 3.8; the bootstrap runs a little wide or
    // narrow at 41 samples, so five deviations.
    CHECK(covered >= 266);
    CHECK(covered < kTrials);
  }

  TEST_CASE("the bootstrap is reproducible and its seed matters") {
    std::vector<double> x(30);
    PhiloxStream stream(3);
    for (double& v : x) v = stream.uniform();
    const Interval a = bootstrap_median_interval(x), b = bootstrap_median_interval(x);
    CHECK(a.low == b.low);
    CHECK(a.high == b.high);
    const Interval same = bootstrap_median_interval(std::vector<double>(20, 3.5));
    CHECK(same.low == 3.5);
    CHECK(same.high == 3.5);
  }
}
