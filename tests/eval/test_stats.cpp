#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "base/rng.h"
#include "eval/paired.h"
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

TEST_SUITE("eval/paired") {
  TEST_CASE("counts tell who was right") {
    PairedCounts c;
    c.add(true, true);
    c.add(true, false);
    c.add(false, true);
    c.add(false, true);
    c.add(false, false);
    CHECK(c.n() == 5);
    CHECK(c.method() == doctest::Approx(0.4));
    CHECK(c.reference() == doctest::Approx(0.6));
    CHECK(paired_difference(c).mean == doctest::Approx(-0.2));
    const std::vector<double> values = {0, 1, -1, -1, 0};
    CHECK(*paired_difference(c).stderr_ == doctest::Approx(*mean_of(values).stderr_));
  }

  TEST_CASE("the paired interval equals values worked out by hand") {
    // 5 and 15 discordant of 100: adjusted mean -10/102, variance (21 - 100/102) / 102 a case.
    const PairedCounts c{.both = 50, .method_only = 5, .reference_only = 15, .neither = 30};
    const Range r = paired_interval(c);
    CHECK(r.low == doctest::Approx(-0.1837).epsilon(1e-3));
    CHECK(r.high == doctest::Approx(-0.0124).epsilon(1e-2));
    // Nothing differs: still a width, and 0 inside.
    const Range same = paired_interval({.both = 20});
    CHECK(same.low < 0);
    CHECK(same.high > 0);
    CHECK(paired_interval({.both = 20}, 0.95).high > 0);
    CHECK(paired_interval({.reference_only = 2}, 0.95).high > 0);  // two cases show nothing
    CHECK(paired_interval({.reference_only = 20}, 0.95).high < 0);
  }

  TEST_CASE("the paired interval covers the truth") {
    tandem::PhiloxStream random(3);
    int covered = 0;
    constexpr int kTrials = 400;
    for (int trial = 0; trial < kTrials; ++trial) {
      PairedCounts c;
      for (int i = 0; i < 60; ++i) {
        const bool reference = random.uniform() < 0.8;
        c.add(random.uniform() < (reference ? 0.9 : 0.3), reference);  // 0.78 against 0.8
      }
      const Range r = paired_interval(c);
      covered += r.low <= -0.02 && -0.02 <= r.high ? 1 : 0;
    }
    CHECK(covered >= 0.92 * kTrials);
    CHECK(covered < kTrials);
  }

  TEST_CASE("tasks count the same in the mean, however many cases they have") {
    const std::vector<PairedCounts> tasks = {{.both = 10}, {.both = 1, .reference_only = 1}};
    const TaskMeans m = mean_over_tasks(tasks);
    CHECK(m.method == 0.75);
    CHECK(m.difference.mean == -0.25);
    CHECK(*m.difference.stderr_ == doctest::Approx(0.25));  // half of 0.5, the other task has none
    CHECK(*m.ratio == 0.75);
    CHECK(m.interval.low < 0.75);
    CHECK(m.interval.high > 0.75);
    CHECK(!mean_over_tasks(std::vector<PairedCounts>{{.neither = 5}}).ratio);
  }

  TEST_CASE("bootstrap intervals of ratios") {
    const std::vector<PairedCounts> tasks = {
        {.both = 100}, {.both = 60, .method_only = 10, .reference_only = 20, .neither = 10}};
    const auto r = bootstrap_ratios(tasks, 1);
    REQUIRE(r.size() == 3);
    CHECK(r[0]->low == 1);
    CHECK(r[0]->high == 1);
    // Delta method: 7/8 with standard error sqrt(var(x - r y) / n) / 0.8 = 0.064.
    CHECK(r[1]->low == doctest::Approx(0.875 - 1.96 * 0.064).epsilon(0.03));
    CHECK(r[1]->high == doctest::Approx(0.875 + 1.96 * 0.064).epsilon(0.03));
    CHECK(r[2]->low > r[1]->low);
    CHECK(r[2]->high < 1.02);
    CHECK(bootstrap_ratios(tasks, 1)[2]->low == r[2]->low);
    CHECK(!bootstrap_ratios(std::vector<PairedCounts>{{.neither = 3}})[0]);
  }
}
