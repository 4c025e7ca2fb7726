// The rules of verification, proved on small trees: in fractions, over all trees that may be drawn
// and all outcomes of every coin, texts have exactly the target's distribution.
#include <doctest/doctest.h>
#include <gmpxx.h>

#include <array>
#include <map>

#include "kernels/tree/rules_ref.h"

using namespace tandem;

namespace {

using Fraction = mpq_class;
using Fractions = Distribution<Fraction>;
using Text = std::vector<int>;

constexpr int kVocab = 3;

/// Rows of a table: the next token's distribution after each token.
using Table = std::array<std::array<int, kVocab>, kVocab>;
constexpr Table kTarget = {{{5, 3, 2}, {4, 1, 5}, {0, 6, 4}}},
                kDraft = {{{2, 7, 1}, {2, 6, 2}, {1, 5, 4}}};

/// Two models, and the token that they go on from.
struct Toy {
  Table target = kTarget, draft = kDraft;
  int root = 0;
};

Fractions row_of(const Table& table, int token) {
  Fractions row;
  for (const int tenths : table[static_cast<size_t>(token)]) row.emplace_back(tenths, 10);
  for (Fraction& f : row) f.canonicalize();
  return row;
}

/// Numbers of children, breadth first.
using Shape = std::vector<int>;
const Shape kShapes[] = {
    {1, 0},       {1, 1, 0},    {1, 1, 1, 0},       {2, 0, 0},
    {3, 0, 0, 0}, {2, 1, 0, 0}, {2, 2, 1, 0, 0, 0}, {2, 1, 2, 1, 0, 0, 0},
};

/// How the children of a node come about.
enum class Children { drawn, first_drawn, fixed };

enum class Fault { none, one_coin, other_order, with_replacement };

/// A tree with its tokens, and one way that its coins may fall: those named so far have been found
/// in an interval each. Outcomes are gone through like the digits of a number.
class DrawnTree {
 public:
  DrawnTree(const Shape& shape, Children kind, Fault fault, const Toy& toy = {})
      : shape_(shape), kind_(kind), fault_(fault), toy_(toy), tokens_(shape.size(), toy.root) {
    int known = 1;
    for (const int n : shape) first_.push_back(known), known += n;
  }

  // As rules_ref.h asks.
  int n_children(int node) const { return shape_[static_cast<size_t>(node)]; }
  int child(int node, int i) const {
    return first_[static_cast<size_t>(node)] +
           (fault_ == Fault::other_order ? n_children(node) - 1 - i : i);
  }
  int token(int node) const { return tokens_[static_cast<size_t>(node)]; }
  Fractions target(int node) const { return row_of(toy_.target, token(node)); }
  Fractions proposal(int node, int i) const {
    Text earlier;
    for (int j = 0; j < i; ++j) earlier.push_back(token(child(node, j)));
    if (fault_ == Fault::with_replacement) earlier.clear();
    return proposal_after(node, earlier);
  }
  bool is_nothing(const Fraction& x) const { return x == 0; }
  bool decide(int node, const Fraction& p) {
    auto& [low, high] = coin_.try_emplace(fault_ == Fault::one_coin ? 0 : node, 0, 1).first->second;
    if (p <= low || p >= high) return p >= high;
    if (n_decided_ == script_.size()) script_.push_back(true);
    const bool accepts = script_[n_decided_++];
    chance_ *= (accepts ? p - low : high - p) / (high - low);
    (accepts ? high : low) = p;
    return accepts;
  }

  /// Of a child drawn after its earlier siblings.
  Fractions proposal_after(int node, const Text& earlier) const {
    Fractions q = row_of(toy_.draft, token(node));
    for (const int x : earlier) q[static_cast<size_t>(x)] = 0;
    const bool is_drawn =
        kind_ == Children::drawn || (kind_ == Children::first_drawn && earlier.empty());
    if (!is_drawn) {  // the most likely one
      const auto best = std::max_element(q.begin(), q.end()) - q.begin();
      q.assign(kVocab, 0);
      q[static_cast<size_t>(best)] = 1;
      return q;
    }
    Fraction sum = 0;
    for (const Fraction& x : q) sum += x;
    for (Fraction& x : q) x /= sum;
    return q;
  }

  /// Calls visit() for each way that all children may be drawn, with its probability.
  template <class Visit>
  void draw_all(const Visit& visit, size_t node = 0, int i = 0, const Fraction& chance = 1) {
    if (node == shape_.size()) return visit(chance);
    if (i == shape_[node]) return draw_all(visit, node + 1, 0, chance);
    const auto first = static_cast<size_t>(first_[node]);
    const Text earlier(tokens_.begin() + static_cast<long>(first),
                       tokens_.begin() + static_cast<long>(first) + i);
    const Fractions q = proposal_after(static_cast<int>(node), earlier);
    for (size_t x = 0; x < kVocab; ++x) {
      if (q[x] == 0) continue;
      tokens_[first + static_cast<size_t>(i)] = static_cast<int>(x);
      draw_all(visit, node, i + 1, chance * q[x]);
    }
  }

  /// Calls visit(chance) for each way that the coins may fall; it runs the rule on this tree.
  template <class Run, class Visit>
  void fall_all(const Run& run, const Visit& visit) {
    script_.clear();
    for (;;) {
      coin_.clear();
      n_decided_ = 0;
      chance_ = 1;
      const Ending<Fraction> end = run(*this);
      visit(end, chance_);
      while (!script_.empty() && !script_.back()) script_.pop_back();
      if (script_.empty()) return;
      script_.back() = false;
    }
  }

 private:
  const Shape& shape_;
  Children kind_;
  Fault fault_;
  Toy toy_;
  std::vector<int> first_;
  Text tokens_;
  std::map<int, std::pair<Fraction, Fraction>> coin_;
  std::vector<bool> script_;
  size_t n_decided_ = 0;
  Fraction chance_;
};

/// Probabilities of all texts of n tokens after token 0, and what they are under the target.
struct Texts {
  std::map<Text, Fraction> found, wanted;
  Fraction mean_accepted = 0;

  /// The text goes on by the target's distribution.
  static void go_on(std::map<Text, Fraction>& to, const Text& text, size_t n,
                    const Fraction& chance) {
    if (chance == 0) return;
    if (text.size() == n) {
      to[text] += chance;
      return;
    }
    const Fractions next = row_of(kTarget, text.empty() ? 0 : text.back());
    for (size_t x = 0; x < kVocab; ++x) {
      Text longer = text;
      longer.push_back(static_cast<int>(x));
      go_on(to, longer, n, chance * next[x]);
    }
  }
};

template <class Run>
Texts texts_of(const Shape& shape, Children kind, Fault fault, const Run& run) {
  DrawnTree tree(shape, kind, fault);
  Texts texts;
  const size_t n = 4;  // levels and one more
  Texts::go_on(texts.wanted, {}, n, 1);
  tree.draw_all([&](const Fraction& drawn) {
    tree.fall_all(run, [&](const Ending<Fraction>& end, const Fraction& chance) {
      Text text;
      for (const int node : end.path) text.push_back(tree.token(node));
      texts.mean_accepted += drawn * chance * static_cast<int>(text.size());
      for (size_t x = 0; x < kVocab; ++x) {
        Text longer = text;
        longer.push_back(static_cast<int>(x));
        Texts::go_on(texts.found, longer, n, drawn * chance * end.residual[x]);
      }
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

template <class Rest = RestOf>
Ending<Fraction> by_nodes(DrawnTree& tree) {
  return verify_by_nodes<Fraction, Rest>(tree);
}
template <class Rest = RestOf>
Ending<Fraction> by_sequences(DrawnTree& tree) {
  return verify_by_sequences<Fraction, Rest>(tree);
}

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
    constexpr Table kP = {{{4, 4, 2}, {2, 5, 3}, {3, 1, 6}}},
                    kQ = {{{6, 3, 1}, {2, 5, 3}, {1, 3, 6}}};
    const Fraction kWanted[][3] = {
        {{9, 5}, 2, {9, 5}}, {{5, 2}, {29, 10}, {123, 50}}, {{779, 250}, {461, 125}, {377, 125}}};
    for (size_t gamma = 1; gamma <= 3; ++gamma)
      for (int root = 0; root < kVocab; ++root) {
        CAPTURE(gamma);
        CAPTURE(root);
        Shape chain(gamma, 1);
        chain.push_back(0);
        DrawnTree tree(chain, Children::drawn, Fault::none, {kP, kQ, root});
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
