#pragma once
// Exact enumeration of verification on small trees: in fractions, over all trees that may be drawn
// and all outcomes of every coin.
#include <gmpxx.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "kernels/tree/rules_ref.h"

namespace tandem::test {

using Fraction = mpq_class;
using Fractions = Distribution<Fraction>;
using Text = std::vector<int>;
using TextChances = std::map<Text, Fraction>;

/// Rows: the next token's distribution after each token.
using Table = std::vector<Fractions>;

/// A table of whole parts of each row's sum.
inline Table table_of(const std::vector<std::vector<int>>& rows) {
  Table table;
  for (const std::vector<int>& row : rows) {
    int sum = 0;
    for (const int part : row) sum += part;
    Fractions& parts = table.emplace_back();
    for (const int part : row) parts.emplace_back(part, sum).canonicalize();
  }
  return table;
}

/// Two models.
struct Toy {
  Table target, draft;
};

/// Numbers of children, breadth first.
using Shape = std::vector<int>;

/// How the children of a node come about.
enum class Children { drawn, first_drawn, fixed };

enum class Fault { none, one_coin, other_order, with_replacement };

/// A tree with its tokens, and one way that its coins may fall: those named so far have been found
/// in an interval each. Outcomes are gone through like the digits of a number.
class DrawnTree {
 public:
  /// toy      outlives the tree, as does the shape
  /// root     token that the tree goes on from
  DrawnTree(const Shape& shape, const Toy& toy, int root = 0, Children kind = Children::drawn,
            Fault fault = Fault::none)
      : shape_(shape), kind_(kind), fault_(fault), toy_(toy), tokens_(shape.size(), root) {
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
  Fractions target(int node) const { return row_of(toy_.target, node); }
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
    Fractions q = row_of(toy_.draft, node);
    for (const int x : earlier) q[static_cast<size_t>(x)] = 0;
    const bool is_drawn =
        kind_ == Children::drawn || (kind_ == Children::first_drawn && earlier.empty());
    if (!is_drawn) {  // the most likely one
      const auto best = std::max_element(q.begin(), q.end()) - q.begin();
      q.assign(q.size(), 0);
      q[static_cast<size_t>(best)] = 1;
      return q;
    }
    Fraction sum = 0;
    for (const Fraction& x : q) sum += x;
    for (Fraction& x : q) x /= sum;
    return q;
  }

  /// Takes these tokens, breadth first after the root, instead of drawing them.
  void hold(const Text& tokens) { std::ranges::copy(tokens, tokens_.begin() + 1); }

  /// Calls visit() for each way that all children may be drawn, with its probability.
  template <class Visit>
  void draw_all(const Visit& visit, size_t node = 0, int i = 0, const Fraction& chance = 1) {
    if (node == shape_.size()) return visit(chance);
    if (i == shape_[node]) return draw_all(visit, node + 1, 0, chance);
    const auto first = static_cast<size_t>(first_[node]);
    const Text earlier(tokens_.begin() + static_cast<long>(first),
                       tokens_.begin() + static_cast<long>(first) + i);
    const Fractions q = proposal_after(static_cast<int>(node), earlier);
    for (size_t x = 0; x < q.size(); ++x) {
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

  /// What an ending yields: the accepted tokens and one more.
  TextChances texts_of(const Ending<Fraction>& end) const {
    TextChances texts;
    Text text;
    for (const int node : end.path) text.push_back(token(node));
    text.push_back(0);
    for (size_t x = 0; x < end.residual.size(); ++x) {
      if (end.residual[x] == 0) continue;
      text.back() = static_cast<int>(x);
      texts[text] = end.residual[x];
    }
    return texts;
  }

 private:
  const Fractions& row_of(const Table& table, int node) const {
    return table[static_cast<size_t>(token(node))];
  }

  const Shape& shape_;
  Children kind_;
  Fault fault_;
  const Toy& toy_;
  std::vector<int> first_;
  Text tokens_;
  std::map<int, std::pair<Fraction, Fraction>> coin_;
  std::vector<bool> script_;
  size_t n_decided_ = 0;
  Fraction chance_;
};

/// A rule of verification.
using Rule = std::function<Ending<Fraction>(DrawnTree&)>;

template <class Rest = RestOf>
Ending<Fraction> by_nodes(DrawnTree& tree) {
  return verify_by_nodes<Fraction, Rest>(tree);
}
template <class Rest = RestOf>
Ending<Fraction> by_sequences(DrawnTree& tree) {
  return verify_by_sequences<Fraction, Rest>(tree);
}

/// A text after the root, of that probability, goes on to n tokens by the distributions of
/// `target`.
inline void go_on(TextChances& to, const Text& text, size_t n, const Fraction& chance,
                  const Table& target, int root) {
  if (chance == 0) return;
  if (text.size() == n) {
    to[text] += chance;
    return;
  }
  const Fractions& next = target[static_cast<size_t>(text.empty() ? root : text.back())];
  for (size_t x = 0; x < next.size(); ++x) {
    Text longer = text;
    longer.push_back(static_cast<int>(x));
    go_on(to, longer, n, chance * next[x], target, root);
  }
}

}  // namespace tandem::test
