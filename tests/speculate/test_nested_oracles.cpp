// Rounds within rounds are lossless with every rule at each level: TriForce's specification,
// sections 11.1 and 11.2, in fractions. Its reference program, whose inner rule is biased, is found
// out by the same checks.
#include <doctest/doctest.h>

#include "speculate/nested_enumeration.h"
#include "speculate/plan/nested_tokens.h"

using namespace tandem;
using namespace tandem::test;

namespace {

const Table kSmall = table_of({{6, 3, 1}, {2, 5, 3}, {1, 3, 6}}),
            kRetrieval = table_of({{5, 3, 2}, {1, 6, 3}, {2, 2, 6}}),
            kTarget = table_of({{4, 4, 2}, {2, 5, 3}, {3, 1, 6}});
constexpr int kVocab = 3;

Shape chain_of(int gamma) {
  Shape shape(static_cast<size_t>(gamma), 1);
  shape.push_back(0);
  return shape;
}

/// On rejection a token from the whole distribution of the verifier, not from what the draft left.
Ending<Fraction> biased(DrawnTree& tree) {
  Ending<Fraction> end = by_nodes<>(tree);
  end.residual = tree.target(end.path.empty() ? 0 : end.path.back());
  return end;
}

NestedToy toy_of(const Shape& shape, int enough, const Rule& inner, const Rule& outer) {
  return {.small = kSmall,
          .retrieval = kRetrieval,
          .target = kTarget,
          .shape = shape,
          .inner = inner,
          .outer = outer,
          .enough = static_cast<size_t>(enough),
          .rounds = enough};
}

OuterRound round_of(const NestedToy& toy, int root, size_t n) {
  return verify(toy, grow(toy, root), root, n);
}

/// How far the first n tokens are from the target's.
Fraction bias(const NestedToy& toy, int root, size_t n) {
  return distance(round_of(toy, root, n).texts, plain_texts(toy.target, root, n));
}

struct Lengths {
  int gamma1, enough;
};
constexpr Lengths kLengths[] = {{1, 2}, {1, 3}, {2, 3}};
const Rule kRules[] = {by_nodes<>, by_sequences<>};  // sequoia; block of chains, traversal of trees

double value(const Fraction& f) { return f.get_d(); }
doctest::Approx near(double wanted) { return doctest::Approx(wanted).epsilon(1e-9); }

/// A token's distribution, the same after each token.
Table always(const std::vector<int>& parts) {
  return table_of(std::vector<std::vector<int>>(parts.size(), parts));
}

/// The first tokens of texts.
Fractions first_tokens(const TextChances& texts, size_t vocab) {
  Fractions first(vocab);
  for (const auto& [text, p] : texts) first[static_cast<size_t>(text[0])] += p;
  return first;
}

}  // namespace

TEST_SUITE("speculate/nested oracles") {
  TEST_CASE("chains within chains: texts have exactly the target's distribution by each rule") {
    for (const auto [gamma1, enough] : kLengths)
      for (const Rule& inner : kRules)
        for (const Rule& outer : kRules)
          for (int root = 0; root < kVocab; ++root) {
            CAPTURE(gamma1);
            CAPTURE(enough);
            CAPTURE(root);
            const NestedToy toy = toy_of(chain_of(gamma1), enough, inner, outer);
            CHECK(bias(toy, root, 2) == 0);
            CHECK(bias(toy, root, 4) == 0);
          }
  }

  TEST_CASE("trees within chains, children drawn without replacement") {
    for (const Shape& shape : {Shape{2, 0, 0}, Shape{2, 1, 0, 0}, Shape{2, 1, 1, 0, 0}})
      for (const Rule& inner : kRules)
        for (const Rule& outer : kRules) {
          CAPTURE(shape.size());
          CHECK(bias(toy_of(shape, 2, inner, outer), 0, 4) == 0);
        }
  }

  TEST_CASE("chains follow the distributions that they are verified with, wherever they end") {
    for (const Rule& inner : kRules)
      for (const Shape& shape : {chain_of(2), Shape{2, 1, 0, 0}}) {
        NestedToy toy = toy_of(shape, 3, inner, by_sequences<>);
        for (int root = 0; root < kVocab; ++root) {
          TextChances chains;
          for (const auto& [text, p] : grow(toy, root).texts)
            go_on(chains, text, 5, p, kRetrieval, root);
          CHECK(chains == plain_texts(kRetrieval, root, 5));
        }
        // Too few inner rounds for enough, or a chain that is cut to the room that is left.
        for (toy.rounds = 1; toy.rounds < 3; ++toy.rounds) CHECK(bias(toy, 0, 4) == 0);
        for (toy.room = 1; toy.room < 4; ++toy.room) CHECK(bias(toy, 0, 4) == 0);
      }
  }

  TEST_CASE("tokens of a round and inner rounds, by sequoia at both levels") {
    struct Row {
      Lengths lengths;
      double tokens[kVocab];
      double rounds;
    };
    const Row rows[] = {{{1, 2}, {2.78200, 2.77125, 2.78200}, 1.1},
                        {{1, 3}, {3.9688000000, 3.9773291667, 3.9667000000}, 2.01},
                        {{2, 3}, {3.6078912500, 3.5958962500, 3.6121070833}, 1.2}};
    for (const Row& r : rows)
      for (int root = 0; root < kVocab; ++root) {
        const auto [gamma1, enough] = r.lengths;
        CAPTURE(gamma1);
        CAPTURE(enough);
        CAPTURE(root);
        const NestedToy toy = toy_of(chain_of(gamma1), enough, by_nodes<>, by_nodes<>);
        const GrownChains grown = grow(toy, root);
        CHECK(value(grown.rounds) == near(r.rounds));
        CHECK(value(verify(toy, grown, root, 2).tokens) == near(r.tokens[root]));
        // In every state a drafted token is accepted with .9, as plans suppose.
        speculate::AcceptanceVector acceptance;
        acceptance.rows = {{.9}};
        const auto inner = speculate::round_tokens(speculate::chain_tree(gamma1 + 1), acceptance);
        const auto chain = speculate::grow_chains(inner, enough, enough).back();
        CHECK(value(grown.rounds) == near(chain.rounds));
        std::vector<double> lengths(chain.tokens.size());
        for (const auto& [text, p] : grown.texts) lengths[text.size()] += value(p);
        for (size_t n = 0; n < lengths.size(); ++n)
          CHECK(std::abs(lengths[n] - chain.tokens[n]) < 1e-12);
      }
  }

  TEST_CASE("by sequences outer rounds give more tokens, and no more inner rounds are needed") {
    for (const auto [gamma1, enough] : kLengths)
      for (int root = 0; root < kVocab; ++root) {
        const auto tokens = [&](const Rule& inner, const Rule& outer) {
          return round_of(toy_of(chain_of(gamma1), enough, inner, outer), root, 2).tokens;
        };
        CHECK(tokens(by_nodes<>, by_sequences<>) > tokens(by_nodes<>, by_nodes<>));
        const auto rounds = [&](const Rule& inner) {
          return grow(toy_of(chain_of(gamma1), enough, inner, by_nodes<>), root).rounds;
        };
        CHECK(rounds(by_sequences<>) <= rounds(by_nodes<>));
      }
  }

  TEST_CASE("the biased inner rule is found out") {
    for (const auto [gamma1, enough] : kLengths) {
      CAPTURE(gamma1);
      CAPTURE(enough);
      const NestedToy toy = toy_of(chain_of(gamma1), enough, biased, by_nodes<>);
      const Fractions first = first_tokens(round_of(toy, 0, 2).texts, kVocab);
      CHECK(first == Fractions{Fraction(11, 25), Fraction(11, 25), Fraction(3, 25)});
      CHECK(bias(toy, 0, 2) == (gamma1 == 1 ? Fraction(2, 25) : Fraction(67, 625)));
      for (const Rule& outer : kRules)
        for (int root = 0; root < kVocab; ++root)
          CHECK(bias(toy_of(chain_of(gamma1), enough, biased, outer), root, 2) > 0);
    }
    CHECK(bias(toy_of({2, 1, 0, 0}, 2, biased, by_sequences<>), 0, 2) > 0);
  }

  TEST_CASE(
      "an outer round that takes the small model's distributions for the chain's is found out") {
    for (const Rule& outer : kRules) {
      NestedToy toy = toy_of(chain_of(1), 2, by_nodes<>, outer);
      toy.proposal = &kSmall;
      CHECK(bias(toy, 0, 2) > 0);
    }
  }

  TEST_CASE("vectors of one step") {
    struct Row {
      std::vector<int> small, retrieval, target;  // hundredths
      double inner[4], output[4];                 // of the biased rule
      double distance, chi_square;                // of the output, a sample
    };
    const Row rows[] = {{{40, 30, 20, 10},
                         {10, 20, 30, 40},
                         {25, 25, 25, 25},
                         {.14, .28, .32, .26},
                         {.2531250000, .3177083333, .2666666667, .1625000000},
                         .0875,
                         .0501128472},
                        {{70, 10, 10, 10},
                         {20, 50, 20, 10},
                         {25, 45, 10, 20},
                         {},
                         {.345, .315, .1, .24},
                         .135,
                         .0846}};
    for (const Row& r : rows) {
      NestedToy toy{.small = always(r.small),
                    .retrieval = always(r.retrieval),
                    .target = always(r.target),
                    .shape = chain_of(1),
                    .inner = by_nodes<>,
                    .outer = by_nodes<>};
      CHECK(first_tokens(grow(toy, 0).texts, 4) == toy.retrieval[0]);
      CHECK(bias(toy, 0, 1) == 0);
      toy.inner = biased;
      if (r.inner[0] > 0) {
        const Fractions inner = first_tokens(grow(toy, 0).texts, 4);
        for (size_t x = 0; x < 4; ++x) CHECK(value(inner[x]) == near(r.inner[x]));
      }
      CHECK(value(bias(toy, 0, 1)) == near(r.distance));
      const Fractions output = first_tokens(round_of(toy, 0, 1).texts, 4);
      double chi_square = 0;
      for (size_t x = 0; x < 4; ++x) {
        CHECK(std::abs(value(output[x]) - r.output[x]) < 5.1e-11);
        const double p = value(toy.target[0][x]), off = value(output[x]) - p;
        chi_square += off * off / p;
      }
      CHECK(std::abs(chi_square - r.chi_square) < (r.chi_square == .0846 ? 5.1e-5 : 5.1e-11));
    }
    // The small model's token is rejected with .4, the retrieval's with .2.
    const auto accepted = [](const std::vector<int>& target, const std::vector<int>& draft) {
      Fraction tokens = 0;
      const Toy toy{always(target), always(draft)};
      for (const auto& [text, p] : appended(chain_of(1), toy, 0, by_nodes<>))
        tokens += p * static_cast<int>(text.size());
      return Fraction(tokens - 1);
    };
    CHECK(accepted(rows[0].retrieval, rows[0].small) == 1 - Fraction(2, 5));
    CHECK(accepted(rows[0].target, rows[0].retrieval) == 1 - Fraction(1, 5));
  }
}
