#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/rng.h"
#include "speculate/tree/tree_table.h"
#include "tree_testing.h"

using namespace tandem;
using namespace tandem::speculate;
using test::vector_of;

namespace {

/// The best value over all trees of n nodes, each visited once.
struct Enumeration {
  const AcceptanceVector& v;
  int max_levels;
  double best = -std::numeric_limits<double>::infinity();
  int n_trees = 0;

  /// Open nodes are kept on a stack, as (depth, score); each is given 0 .. all its children.
  void run(int n) {
    std::vector<std::pair<int, double>> open = {{0, 1.0}};
    visit(open, n - 1, 1.0);
  }
  void visit(std::vector<std::pair<int, double>>& open, int left, double value) {
    if (open.empty()) {
      if (left > 0) return;
      ++n_trees;
      best = std::max(best, value);
      return;
    }
    const auto [depth, score] = open.back();
    open.pop_back();
    const auto& row = v.row(depth);
    const int most = depth + 1 < max_levels ? std::min(left, static_cast<int>(row.size())) : 0;
    double sum = 0;
    const size_t before = open.size();
    for (int b = 0; b <= most; ++b) {
      if (b > 0) {
        const double child = score * row[static_cast<size_t>(b) - 1];
        open.emplace_back(depth + 1, child);
        sum += child;
      }
      auto copy = open;
      visit(copy, left - b, value + sum);
    }
    open.resize(before);
    open.emplace_back(depth, score);
  }
};

/// Seeded rows of a given length that sum to at most 1.
test::Rows random_rows(uint32_t seed, size_t n_rows, size_t length) {
  PhiloxStream stream(seed);
  test::Rows rows(n_rows, std::vector<double>(length));
  for (auto& row : rows) {
    double sum = 0;
    for (double& p : row) {
      const uint32_t high = stream.next();
      p = std::pow(uniform53(high, stream.next()), 3);  // a few large ones
      sum += p;
    }
    for (double& p : row) p *= 0.95 / sum;
  }
  return rows;
}

/// F(n, levels) by the recurrence as it is written down, every m tried; -inf where there is no
/// tree.
std::vector<double> textbook(const AcceptanceVector& v, int max_size, int levels) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const auto size = static_cast<size_t>(max_size) + 1;
  std::vector<double> below(size, kNone);
  below[1] = 1;
  for (int depth = levels - 2; depth >= 0; --depth) {
    std::vector<double> with_b(size, kNone), best(size, kNone);
    with_b[1] = best[1] = 1;
    for (const double p : v.row(depth)) {
      std::vector<double> next(size, kNone);
      for (size_t n = 2; n < size; ++n)
        for (size_t m = 1; m < n; ++m)
          if (below[m] > kNone) next[n] = std::max(next[n], with_b[n - m] + p * below[m]);
      with_b = next;
      for (size_t n = 2; n < size; ++n) best[n] = std::max(best[n], next[n]);
    }
    below = best;
  }
  return below;
}

}  // namespace

TEST_SUITE("speculate/tree table") {
  TEST_CASE("every tree, enumerated") {
    const test::Rows lists[] = {{{.3, .05, .25, .02}},
                                {{.05, .6, .1}},
                                {{.5, 0, .3}},
                                {{0, .5, .2}},
                                {{.5, .2, .1}, {.1, .6, .2}, {.2, .2, .2}},
                                {{1.0}},
                                {{0, 0}}};
    for (const auto& rows : lists)
      for (const int levels : {1, 2, 3, 4, 99})
        for (int n = 1; n <= 8; ++n) {
          const AcceptanceVector v = vector_of(rows);
          CAPTURE(rows[0][0]);
          CAPTURE(levels);
          CAPTURE(n);
          Enumeration all{v, levels};
          all.run(n);
          for (const auto algorithm : {TreeAlgorithm::automatic, TreeAlgorithm::dp}) {
            const auto found = TreeTable(v, {n, 1, levels}, algorithm).expected(n, levels);
            REQUIRE(found.has_value() == (all.n_trees > 0));
            if (found) CHECK(*found == doctest::Approx(all.best).epsilon(1e-13));
          }
        }
    // Trees of 5 nodes of at most 3 ordered children: the Catalan number 14 less the star of 4.
    const AcceptanceVector three = vector_of({{.5, .2, .1}});
    Enumeration count{three, 99};
    count.run(5);
    CHECK(count.n_trees == 13);
  }

  TEST_CASE("the search that is cut short finds what the whole search finds") {
    for (uint32_t seed = 0; seed < 24; ++seed) {
      const auto rows = random_rows(100 + seed, seed % 3 == 2 ? 4 : 1, 1 + seed);
      const AcceptanceVector v = vector_of(rows);
      const TreeTable table(v, {150, 1, 9}, TreeAlgorithm::dp);
      for (const int levels : {2, 3, 6, 9}) {
        const auto expected = textbook(v, 150, levels);
        for (int n = 1; n <= 150; ++n) {
          CAPTURE(seed);
          CAPTURE(levels);
          CAPTURE(n);
          const double want = expected[static_cast<size_t>(n)];
          const auto found = table.expected(n, levels);
          REQUIRE(found.has_value() == (want > 0));
          if (found) CHECK(std::abs(*found - want) <= 1e-14 * want);
        }
      }
    }
  }

  TEST_CASE(
      "random vectors: greedy <= dp <= greedy on the sorted vector; equal on the sorted one") {
    for (uint32_t seed = 0; seed < 40; ++seed) {
      CAPTURE(seed);
      const size_t n_rows = seed % 4 == 3 ? 3 : 1;
      AcceptanceVector v = vector_of(random_rows(seed, n_rows, 2 + seed % 11)), sorted = v;
      for (auto& row : sorted.rows) std::ranges::sort(row, std::greater<>());
      const int levels = seed % 3 == 0 ? 5 : 99;
      const TreeTable dp(v, {90, 1, levels}, TreeAlgorithm::dp),
          greedy(v, {90, 1, levels}, TreeAlgorithm::greedy);
      const TreeTable dp_sorted(sorted, {90, 1, levels}, TreeAlgorithm::dp);
      const TreeTable greedy_sorted(sorted, {90, 1, levels}, TreeAlgorithm::greedy);
      for (int l = 1; l <= std::min(levels, 20); ++l)
        for (int n = 1; n <= 90; ++n) {
          CAPTURE(l);
          CAPTURE(n);
          const auto f = dp.expected(n, l);
          REQUIRE(greedy.expected(n, l).has_value() == f.has_value());
          REQUIRE(greedy_sorted.expected(n, l).has_value() == f.has_value());
          if (!f) continue;
          CHECK(*greedy.expected(n, l) <= *f * (1 + 1e-13));
          CHECK(*f <= *greedy_sorted.expected(n, l) * (1 + 1e-13));
          CHECK(std::abs(*dp_sorted.expected(n, l) - *greedy_sorted.expected(n, l)) <= 1e-12 * *f);
        }
    }
  }

  TEST_CASE("more nodes, levels or children never lose tokens") {
    const auto rows = random_rows(7, 1, 9);
    const TreeTable all(vector_of(rows), {120, 1, 40});
    for (int l = 2; l <= all.levels(); ++l)
      for (int n = 2; n <= 120; ++n)
        if (all.expected(n, l)) {
          CHECK(*all.expected(n, l) >= *all.expected(n - 1, l) * (1 - 1e-14));
          if (all.expected(n, l - 1))
            CHECK(*all.expected(n, l) >= *all.expected(n, l - 1) * (1 - 1e-14));
        }
    double before = 0;
    for (int b = 1; b <= 9; ++b) {
      const double now =
          *TreeTable(vector_of(rows).first_children(b), {50, 1, 50}).expected(50, 50);
      CHECK(now >= before * (1 - 1e-14));
      before = now;
    }
  }

  TEST_CASE("a small vector on which the greedy tree is worse") {
    const AcceptanceVector v = vector_of({{.5, .05, .4}});
    CHECK(*TreeTable(v, {4, 1, 9}, TreeAlgorithm::greedy).expected(4, 9) == doctest::Approx(1.875));
    CHECK(*TreeTable(v, {4, 1, 9}).expected(4, 9) == doctest::Approx(1.95));
    CHECK(TreeTable(v, {4, 1, 9}).algorithm() == TreeAlgorithm::dp);
    CHECK(TreeTable(v, {4, 1, 9}).tree(4, 9).widths() == std::vector<int>{1, 3});
  }

  TEST_CASE("bounds without a tree") {
    const AcceptanceVector v = vector_of({{.5, .2}});
    for (const auto algorithm : {TreeAlgorithm::greedy, TreeAlgorithm::dp}) {
      const TreeTable table(v, {10, 1, 3}, algorithm);
      CHECK(table.expected(1, 1) == 1.0);
      CHECK_FALSE(table.expected(2, 1));
      CHECK(table.expected(3, 2) == 1.7);
      CHECK_FALSE(table.expected(4, 2));
      CHECK(table.expected(7, 3));  // the complete binary tree
      CHECK_FALSE(table.expected(8, 3));
      CHECK_FALSE(table.expected(11, 3));  // beyond the table
      CHECK(table.levels() == 3);
    }
  }

  TEST_CASE("work that is asked to stop stops") {
    const AcceptanceVector v = vector_of({{.1, .5, .2}});
    int polls = 0;
    const auto twice = [&] { return ++polls > 2; };
    CHECK_THROWS_AS(TreeTable(v, {500, 1, 500}, TreeAlgorithm::automatic, twice), Error);
    CHECK(polls == 3);
  }
}
