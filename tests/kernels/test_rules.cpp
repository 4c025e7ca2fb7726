// The rules of verification, proved on small trees: in fractions, over all trees that may be drawn
// and all outcomes of every coin, texts have exactly the target's distribution.
#include <doctest/doctest.h>

#include "kernels/drawn_tree.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr int kVocab = 3;

const Toy kToy{table_of({{5, 3, 2}, {4, 1, 5}, {0, 6, 4}}),
               table_of({{2, 7, 1}, {2, 6, 2}, {1, 5, 4}})};

const Shape kShapes[] = {
    {1, 0},       {1, 1, 0},    {1, 1, 1, 0},       {2, 0, 0},
    {3, 0, 0, 0}, {2, 1, 0, 0}, {2, 2, 1, 0, 0, 0}, {2, 1, 2, 1, 0, 0, 0},
};

/// Probabilities of all texts of n tokens after token 0, and what they are under the target.
struct Texts {
  TextChances found, wanted;
  Fraction mean_accepted = 0;
};

Texts texts_of(const Shape& shape, Children kind, Fault fault, const Rule& run) {
  DrawnTree tree(shape, kToy, 0, kind, fault);
  Texts texts;
  const size_t n = 4;  // levels and one more
  go_on(texts.wanted, {}, n, 1, kToy.target, 0);
  tree.draw_all([&](const Fraction& drawn) {
    tree.fall_all(run, [&](const Ending<Fraction>& end, const Fraction& chance) {
      texts.mean_accepted += drawn * chance * static_cast<int>(end.path.size());
      for (const auto& [text, p] : tree.texts_of(end))
        go_on(texts.found, text, n, drawn * chance * p, kToy.target, 0);
    });
  });
  return texts;
}

/// A residual that forgets with which probability its node was reached.
struct WrongRest {
  template <class Number>
  std::optional<Left<Number>> operator()(const Left<Number>& left, const Distribution<Number>& d,
                                         auto&& is_nothing) const {
    auto rest = RestOf()(left, d, is_nothing);
    const auto of_root = RestOf()(Left<Number>{1, left.residual}, d, is_nothing);
    if (rest && of_root) rest->residual = of_root->residual;
    return rest;
  }
};

constexpr Children kKinds[] = {Children::drawn, Children::first_drawn, Children::fixed};

}  // namespace

TEST_SUITE("kernels/rules") {
  TEST_CASE("texts follow the target's distribution exactly, whichever children are proposed") {
    for (const Shape& shape : kShapes)
      for (const Children kind : kKinds) {
        CAPTURE(&shape - kShapes);
        CAPTURE(static_cast<int>(kind));
        const Texts nodes = texts_of(shape, kind, Fault::none, by_nodes<>);
        const Texts sequences = texts_of(shape, kind, Fault::none, by_sequences<>);
        REQUIRE(nodes.wanted.size() > kVocab);
        CHECK(nodes.found == nodes.wanted);
        CHECK(sequences.found == sequences.wanted);
        CHECK(sequences.mean_accepted >= nodes.mean_accepted);
      }
  }

  TEST_CASE("by sequences more is accepted of drawn trees of two levels and more, not of one") {
    for (const Shape& shape : kShapes) {
      CAPTURE(&shape - kShapes);
      const Fraction nodes =
                         texts_of(shape, Children::drawn, Fault::none, by_nodes<>).mean_accepted,
                     sequences = texts_of(shape, Children::drawn, Fault::none, by_sequences<>)
                                     .mean_accepted;
      const bool is_deep = shape[1] > 0;
      CHECK((sequences > nodes) == is_deep);
      CHECK((sequences == nodes) == !is_deep);
    }
  }

  TEST_CASE("tokens a round of chains, by nodes: those of MagicDec's specification, section 11") {
    const Toy toy{table_of({{4, 4, 2}, {2, 5, 3}, {3, 1, 6}}),
                  table_of({{6, 3, 1}, {2, 5, 3}, {1, 3, 6}})};
    const Fraction kWanted[][3] = {
        {{9, 5}, 2, {9, 5}}, {{5, 2}, {29, 10}, {123, 50}}, {{779, 250}, {461, 125}, {377, 125}}};
    for (size_t gamma = 1; gamma <= 3; ++gamma)
      for (int root = 0; root < kVocab; ++root) {
        CAPTURE(gamma);
        CAPTURE(root);
        Shape chain(gamma, 1);
        chain.push_back(0);
        DrawnTree tree(chain, toy, root);
        Fraction tokens = 0;
        tree.draw_all([&](const Fraction& drawn) {
          tree.fall_all(by_nodes<>, [&](const Ending<Fraction>& end, const Fraction& chance) {
            tokens += drawn * chance * (static_cast<int>(end.path.size()) + 1);
          });
        });
        CHECK(tokens == kWanted[gamma - 1][static_cast<size_t>(root)]);
      }
  }

  TEST_CASE("a wrong residual, one coin for all and another order are each found out") {
    const auto differs = [](const Texts& t) { return t.found != t.wanted; };
    const Shape &chain = kShapes[2], &wide = kShapes[4], &deep = kShapes[6];
    CHECK(differs(texts_of(chain, Children::drawn, Fault::none, by_sequences<WrongRest>)));
    CHECK(differs(texts_of(deep, Children::drawn, Fault::none, by_sequences<WrongRest>)));
    for (const Shape& shape : {wide, deep}) {
      CHECK(differs(texts_of(shape, Children::drawn, Fault::with_replacement, by_nodes<>)));
      CHECK(differs(texts_of(shape, Children::drawn, Fault::with_replacement, by_sequences<>)));
      CHECK(differs(texts_of(shape, Children::drawn, Fault::other_order, by_nodes<>)));
      CHECK(differs(texts_of(shape, Children::drawn, Fault::other_order, by_sequences<>)));
      CHECK(differs(texts_of(shape, Children::drawn, Fault::one_coin, by_nodes<>)));
      CHECK(differs(texts_of(shape, Children::drawn, Fault::one_coin, by_sequences<>)));
    }
    CHECK(differs(texts_of(chain, Children::drawn, Fault::one_coin, by_sequences<>)));
  }
}
