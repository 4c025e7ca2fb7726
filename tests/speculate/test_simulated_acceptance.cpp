#include <doctest/doctest.h>

#include <cmath>

#include "speculate/round/simulated_acceptance.h"

using namespace tandem;
using namespace tandem::speculate;

TEST_SUITE("speculate/simulated-acceptance") {
  TEST_CASE("paths go from parent to child, as often as the vector says") {
    AcceptanceVector vector;
    vector.rows = {{0.5, 0.3}, {0.6, 0.1, 0.2}};
    const TokenTree tree = tree_of_children(std::vector<int>{3, 3, 1, 0, 0, 1, 0, 0, 0}, "test");
    const std::vector<double> scores = node_scores(tree, vector);
    std::vector<double> reached(scores.size());
    constexpr int kRounds = 20000;
    for (int i = 0; i < kRounds; ++i) {
      int at = 0;
      ++reached[0];
      for (const int node :
           simulated_path(tree, vector, {.seed = 3, .sequence = i % 7, .position = i})) {
        CHECK(tree.parent[static_cast<size_t>(node)] == at);
        at = node;
        ++reached[static_cast<size_t>(node)];
      }
    }
    for (size_t node = 0; node < scores.size(); ++node) {
      CAPTURE(node);
      const double error = std::sqrt(scores[node] * (1 - scores[node]) / kRounds);
      CHECK(std::abs(reached[node] / kRounds - scores[node]) <= 4 * error);
    }
  }

  TEST_CASE("a round's path depends on its names alone") {
    AcceptanceVector vector;
    vector.rows = {{0.6, 0.2}};
    const TokenTree tree = tree_of_children(std::vector<int>{2, 2, 1, 1, 0, 0, 0}, "test");
    int differ = 0;
    for (int position = 0; position < 50; ++position) {
      const auto path = simulated_path(tree, vector, {1, 2, position});
      CHECK(simulated_path(tree, vector, {1, 2, position}) == path);
      if (simulated_path(tree, vector, {1, 3, position}) != path) ++differ;
    }
    CHECK(differ > 10);
  }
}
