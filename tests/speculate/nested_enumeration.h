#pragma once
// Rounds within rounds, enumerated exactly: all draws and all coins of both levels, in fractions.
#include "kernels/drawn_tree.h"

namespace tandem::test {

/// Two levels over order-1 chains.
struct NestedToy {
  Table small, retrieval, target;
  Shape shape;  // of an inner tree
  Rule inner, outer;
  size_t enough = 1;  // tokens of a tentative chain from which on it takes no more part
  int rounds = 1;     // inner rounds; `enough` of them always do
  size_t room = 64;   // tokens that a tentative chain is cut to
  /// What the outer rule takes for the distributions of the chain's tokens; null: the retrieval's.
  const Table* proposal = nullptr;
};

/// What one round appends after the root: accepted tokens and one more.
inline TextChances appended(const Shape& shape, const Toy& toy, int root, const Rule& rule) {
  TextChances texts;
  DrawnTree tree(shape, toy, root);
  tree.draw_all([&](const Fraction& drawn) {
    tree.fall_all(rule, [&](const Ending<Fraction>& end, const Fraction& chance) {
      for (const auto& [text, p] : tree.texts_of(end)) texts[text] += drawn * chance * p;
    });
  });
  return texts;
}

/// Tentative chains of a round, and the inner rounds that a sequence takes part in.
struct GrownChains {
  TextChances texts;
  Fraction rounds = 0;
};

inline GrownChains grow(const NestedToy& toy, int root) {
  const Toy inner{toy.retrieval, toy.small};
  std::vector<TextChances> appended_after;
  for (int x = 0; x < static_cast<int>(toy.target.size()); ++x)
    appended_after.push_back(appended(toy.shape, inner, x, toy.inner));
  GrownChains grown;
  TextChances open{{{}, 1}};
  for (int round = 0; round < toy.rounds; ++round)
    for (const auto& [text, p] : std::exchange(open, {})) {
      grown.rounds += p;
      const int last = text.empty() ? root : text.back();
      for (const auto& [more, q] : appended_after[static_cast<size_t>(last)]) {
        Text longer = text;
        longer.insert(longer.end(), more.begin(), more.end());
        (longer.size() < toy.enough ? open : grown.texts)[longer] += p * q;
      }
    }
  for (const auto& [text, p] : open) grown.texts[text] += p;  // the rounds were too few
  return grown;
}

/// Up to n tokens of a text.
inline Text first(const Text& text, size_t n) {
  return {text.begin(), text.begin() + static_cast<long>(std::min(n, text.size()))};
}

/// What an outer round makes of them.
struct OuterRound {
  TextChances texts;    // of n tokens, those after the round's from the target
  Fraction tokens = 0;  // of the round, expected
};

inline OuterRound verify(const NestedToy& toy, const GrownChains& grown, int root, size_t n) {
  const Toy outer{toy.target, toy.proposal != nullptr ? *toy.proposal : toy.retrieval};
  OuterRound round;
  for (const auto& [grown_text, p] : grown.texts) {
    const Text text = first(grown_text, toy.room);
    Shape chain(text.size(), 1);
    chain.push_back(0);
    DrawnTree tree(chain, outer, root);
    tree.hold(text);
    tree.fall_all(toy.outer, [&](const Ending<Fraction>& end, const Fraction& chance) {
      for (const auto& [whole, q] : tree.texts_of(end)) {
        const Fraction of_text = p * chance * q;
        round.tokens += of_text * static_cast<int>(whole.size());
        go_on(round.texts, first(whole, n), n, of_text, toy.target, root);
      }
    });
  }
  return round;
}

/// Total variation distance.
inline Fraction distance(const TextChances& a, const TextChances& b) {
  TextChances difference = a;
  for (const auto& [text, p] : b) difference[text] -= p;
  Fraction sum = 0;
  for (const auto& [text, p] : difference) sum += abs(p);
  return sum / 2;
}

/// Texts of n tokens under a model.
inline TextChances plain_texts(const Table& target, int root, size_t n) {
  TextChances texts;
  go_on(texts, {}, n, 1, target, root);
  return texts;
}

}  // namespace tandem::test
