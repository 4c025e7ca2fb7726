#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "base/rng.h"
#include "eval/score_stats.h"

using namespace tandem::eval;

TEST_SUITE("eval/stats") {
  TEST_CASE("Wilson's interval equals values worked out by hand") {
    // (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n) with z = 1.96
    const Range half = wilson_interval(10, 20);
    CHECK(half.low == doctest::Approx(0.2993).epsilon(1e-3));
    CHECK(half.high == doctest::Approx(0.7007).epsilon(1e-3));
    const Range all = wilson_interval(20, 20);
    CHECK(all.low == doctest::Approx(0.8389).epsilon(1e-3));
    CHECK(all.high == 1.0);
    const Range none = wilson_interval(0, 20);
    CHECK(none.low == 0.0);
    CHECK(none.high == doctest::Approx(1 - 0.8389).epsilon(1e-3));
  }

  TEST_CASE("a standard error needs two values") {
    const std::vector<double> one = {0.5}, two = {0.0, 1.0};
    CHECK(!mean_of(one).stderr_);
    CHECK(mean_of(two).mean == 0.5);
    CHECK(*mean_of(two).stderr_ == doctest::Approx(0.5));
    CHECK(*mean_of(std::vector<double>(20, -1.0)).stderr_ == 0.0);
    CHECK(!mean_of_blocks(std::vector<Block>{{3.0, 2}}).stderr_);
  }

  TEST_CASE("equal blocks give the standard error of their means") {
    const std::vector<Block> blocks = {{2.0, 2}, {4.0, 2}, {9.0, 2}};
    const std::vector<double> means = {1.0, 2.0, 4.5};
    CHECK(mean_of_blocks(blocks).mean == doctest::Approx(mean_of(means).mean));
    CHECK(*mean_of_blocks(blocks).stderr_ == doctest::Approx(*mean_of(means).stderr_));
  }

  TEST_CASE("a short block counts by its tokens") {
    const std::vector<Block> blocks = {{100.0, 100}, {3.0, 1}};
    CHECK(mean_of_blocks(blocks).mean == doctest::Approx(103.0 / 101.0));
  }

  TEST_CASE("the block error covers the truth for correlated values") {
    // Runs of 64 equal values: errors that took values as independent would be 8 times too small.
    tandem::PhiloxStream rng(5);
    int covered = 0;
    constexpr int kTrials = 200, kBlocks = 40, kRun = 64;
    for (int trial = 0; trial < kTrials; ++trial) {
      std::vector<Block> blocks;
      for (int i = 0; i < kBlocks; ++i) blocks.push_back({rng.uniform() * kRun, kRun});
      const Estimate e = mean_of_blocks(blocks);
      covered += std::abs(e.mean - 0.5) <= 1.96 * *e.stderr_ ? 1 : 0;
    }
    CHECK(covered >= 0.9 * kTrials);
    CHECK(covered < kTrials);
  }
}
