#include <doctest/doctest.h>

#include <cmath>

#include "error_text.h"
#include "speculate/tree/token_tree.h"
#include "tree_testing.h"

using namespace tandem;
using namespace tandem::speculate;
using test::input_error_text;
using test::vector_of;
using Ints = std::vector<int>;

namespace {

TokenTree tree_of(const Ints& n_children) { return tree_of_children(n_children, "t.json"); }

/// `n_chains` chains of `length` nodes under one root.
TokenTree chains(int n_chains, int length) {
  Ints parents = {-1};
  for (int c = 0; c < n_chains; ++c)
    for (int i = 0; i < length; ++i)
      parents.push_back(i == 0 ? 0 : static_cast<int>(parents.size()) - 1);
  return tree_of_parents(parents);
}

}  // namespace

TEST_SUITE("speculate/token tree") {
  TEST_CASE("nodes of beams: levels of one width; a beam of one is a chain") {
    const TokenTree tree = beam_tree(3, 2);
    CHECK(tree.parent == std::vector<int>{-1, 0, 0, 0, 1, 2, 3});
    CHECK(tree.widths() == std::vector<int>{1, 3, 3});
    CHECK(beam_tree(1, 4).n_children == chain_tree(5).n_children);
    CHECK(beam_tree(4, 0).size() == 1);
  }

  TEST_CASE("all arrays follow from the numbers of children") {
    const TokenTree t = tree_of({3, 2, 0, 1, 0, 1, 0, 0});
    CHECK(t.size() == 8);
    CHECK(t.levels() == 4);
    CHECK(t.widths() == Ints{1, 3, 3, 1});
    CHECK(t.parent == Ints{-1, 0, 0, 0, 1, 1, 3, 5});
    CHECK(t.depth == Ints{0, 1, 1, 1, 2, 2, 2, 3});
    CHECK(t.child_index == Ints{0, 0, 1, 2, 0, 1, 0, 0});
    CHECK(t.first_child == Ints{1, 4, 6, 6, 7, 7, 8, 8});
    CHECK(t.level_begin == Ints{0, 1, 4, 7, 8});
    const TokenTree root = tree_of({0});
    CHECK(root.levels() == 1);
    CHECK(root.widths() == Ints{1});
  }

  TEST_CASE("parents in any order are renumbered level by level") {
    // 0 -> 1, 3; 1 -> 2, 5; 3 -> 4
    const TokenTree t = tree_of_parents(Ints{-1, 0, 1, 0, 3, 1});
    CHECK(t.n_children == Ints{2, 2, 1, 0, 0, 0});
    CHECK_THROWS_AS(tree_of_parents(Ints{-1, 2, 0}), Error);
  }

  TEST_CASE("a node attends to its ancestors and itself") {
    const TokenTree t = tree_of({3, 2, 0, 1, 0, 1, 0, 0});
    const auto bits = ancestor_bits(t);
    CHECK(bits == std::vector<uint64_t>{0b1, 0b11, 0b101, 0b1001, 0b10011, 0b100011, 0b1001001,
                                        0b10100011});
    const TokenTree long_chain = chains(1, 130);
    const auto rows = ancestor_bits(long_chain);
    REQUIRE(rows.size() == 131 * 3);
    CHECK(rows[130 * 3] == ~uint64_t{0});
    CHECK(rows[130 * 3 + 2] == 0b111);
    CHECK(rows[64 * 3 + 1] == 1);
  }

  TEST_CASE("expected tokens of chains, stars and complete trees") {
    const AcceptanceVector v = vector_of({{.6, .2, .1}});
    const double p = .6;
    for (const int d : {1, 2, 7})
      CHECK(expected_tokens(chains(1, d), v) ==
            doctest::Approx((1 - std::pow(p, d + 1)) / (1 - p)));
    for (const int k : {1, 2, 3}) {
      const double s = k == 1 ? .6 : k == 2 ? .8 : .9;
      for (const int l : {1, 2, 5})
        CHECK(expected_tokens(chains(k, l), v) ==
              doctest::Approx(1 + s * (1 - std::pow(p, l)) / (1 - p)));
      CHECK(expected_tokens(tree_of(k == 1   ? Ints{1, 0}
                                    : k == 2 ? Ints{2, 0, 0}
                                             : Ints{3, 0, 0, 0}),
                            v) == doctest::Approx(1 + s));
    }
    CHECK(expected_tokens(tree_of({2, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0}), v) ==
          doctest::Approx((1 - std::pow(.8, 4)) / (1 - .8)));
    CHECK(expected_tokens(tree_of({4, 0, 0, 0, 0}), v) == doctest::Approx(1.9));  // no fourth entry
  }

  TEST_CASE("each depth has its row, the last one holds below") {
    const AcceptanceVector v = vector_of({{.5, .25}, {.2}});
    CHECK(node_scores(tree_of({2, 1, 1, 1, 0, 0}), v) ==
          std::vector<double>{1, .5, .25, .5 * .2, .25 * .2, .5 * .2 * .2});
  }

  TEST_CASE("children that a round refused") {
    const TokenTree tree = tree_of({2, 2, 1, 1, 0, 0, 0});  // 1, 2; 3, 4; 5; 6
    const auto refused = [&](const Ints& path, int drafted = 6) {
      return refused_children(tree, path, drafted);
    };
    CHECK(refused({}) == 2);
    CHECK(refused({1}) == 2);
    CHECK(refused({2}) == 2);     // 1, and then 5
    CHECK(refused({2, 5}) == 1);  // ends at a leaf
    CHECK(refused({1, 3}) == 1);
    CHECK(refused({1, 3, 6}) == 0);
    CHECK(refused({1, 4}) == 1);
    CHECK(refused({1, 3}, 5) == 0);  // 6 was not proposed
    CHECK(refused({}, 0) == 0);
    CHECK(refused_children(chain_tree(4), Ints{1, 2}, 3) == 1);
    CHECK(refused_children(chain_tree(4), Ints{1, 2}, 2) == 0);
    CHECK(shallowest_leaf(tree) == 2);
    CHECK(shallowest_leaf(chain_tree(4)) == 3);
    CHECK(shallowest_leaf(chain_tree(1)) == 0);
  }

  TEST_CASE("lists that are no tree") {
    CHECK(input_error_text([] { tree_of({}); }) ==
          "t.json: expected at least a root, found no nodes");
    CHECK(input_error_text([] {
            tree_of({1, 0, 0});
          }) == "t.json: node 2 of 3 has no parent: nodes 0 to 1 have 1 children");
    CHECK(input_error_text([] {
            tree_of({2, -1, 0});
          }) == "t.json: node 1 has -1 children, expected 0 or more");
    CHECK(input_error_text([] {
            tree_of({1, 3, 0});
          }) == "t.json: node 1 has 3 children, but only 1 of 3 nodes are left");
  }
}
