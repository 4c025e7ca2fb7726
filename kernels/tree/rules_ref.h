#pragma once
// The rules of verification over any kind of number, as they are proved: for the reference body in
// doubles, and for tests in fractions. Distributions are normalised after every step.
//
// A Tree has
//   int n_children(node), child(node, i), token(node)
//   Distribution<Number> target(node)        the next token's; empty for a row without meaning
//   Distribution<Number> proposal(node, i)   that child i was drawn from, given those before it
//   bool decide(node, Number probability)    with the node's coin
//   bool is_nothing(Number)                  whether that is rounding alone
#include <cstddef>
#include <optional>
#include <vector>

namespace tandem {

template <class Number>
using Distribution = std::vector<Number>;

/// Of a node: the probability p that it is reached and nothing of it is taken yet, and the
/// distribution of the next token then.
template <class Number>
struct Left {
  Number p;
  Distribution<Number> residual;
};

/// The probability that a child, drawn as x from d, is reached with.
template <class Number>
Number reach_of(const Left<Number>& left, const Distribution<Number>& d, size_t x) {
  if (left.residual[x] == 0) return 0;
  const Number part = left.p * left.residual[x];
  return part >= d[x] ? Number(1) : Number(part / d[x]);
}

/// The rest when a child drawn from d is not taken; nothing if that cannot be.
struct RestOf {
  template <class Number>
  std::optional<Left<Number>> operator()(const Left<Number>& left, const Distribution<Number>& d,
                                         auto&& is_nothing) const {
    Left<Number> rest{0, left.residual};
    Number sum = 0;
    for (size_t x = 0; x < d.size(); ++x) {
      const Number more = left.p * left.residual[x] - d[x];
      rest.residual[x] = more > 0 ? more : Number(0);
      sum += rest.residual[x];
    }
    const Number not_taken = sum + 1 - left.p;
    if (is_nothing(not_taken)) return {};
    if (sum > 0)
      for (Number& r : rest.residual) r /= sum;
    rest.p = sum / not_taken;
    return rest;
  }
};

/// Where a path ends, and what its last token follows.
template <class Number>
struct Ending {
  std::vector<int> path;          // accepted nodes from the root's child on
  Distribution<Number> residual;  // empty: a row without meaning
  int n_rounded = 0;
};

/// Child by child from the root on.
/// Rest     RestOf; tests take another one to see it found out
template <class Number, class Rest = RestOf, class Tree>
Ending<Number> verify_by_nodes(Tree& tree) {
  Ending<Number> end;
  for (int node = 0;;) {
    Left<Number> left{1, tree.target(node)};
    if (left.residual.empty()) return {end.path, {}, end.n_rounded};
    int next = -1;
    for (int i = 0; i < tree.n_children(node) && next < 0; ++i) {
      const int child = tree.child(node, i);
      const Distribution<Number> d = tree.proposal(node, i);
      if (d.empty()) return {end.path, {}, end.n_rounded};
      const Number reach = reach_of(left, d, static_cast<size_t>(tree.token(child)));
      if (tree.decide(child, reach)) next = child;
      if (next >= 0) break;
      const auto rest = Rest()(left, d, [&](const Number& x) { return tree.is_nothing(x); });
      if (rest) left = *rest;
      if (rest || reach == 0) continue;
      ++end.n_rounded;
      next = child;
    }
    if (next < 0) {
      end.residual = left.residual;
      return end;
    }
    end.path.push_back(node = next);
  }
}

/// By sequences, depth first: a node after all below it.
template <class Number, class Rest, class Tree>
class BySequences {
 public:
  explicit BySequences(Tree& tree) : tree_(tree) {}

  Ending<Number> run() {
    if (!visit(0, 1)) return {};
    return std::move(end_);
  }

 private:
  /// Whether the search is over.
  bool visit(int node, const Number& p) {
    if (p == 0) return false;
    const int n = tree_.n_children(node);
    if (n == 0) {
      if (!tree_.decide(node, p)) return false;
      end_.residual = tree_.target(node);
      return true;
    }
    Left<Number> left{p, tree_.target(node)};
    if (left.residual.empty()) return is_nonsense();
    bool is_forced = false;
    for (int i = 0; i < n && !is_forced; ++i) {
      const int child = tree_.child(node, i);
      const Distribution<Number> d = tree_.proposal(node, i);
      if (d.empty()) return is_nonsense();
      Number reach = reach_of(left, d, static_cast<size_t>(tree_.token(child)));
      const auto rest = Rest()(left, d, [&](const Number& x) { return tree_.is_nothing(x); });
      is_forced = !rest && reach > 0;
      if (is_forced) {
        end_.n_rounded += tree_.decide(child, reach) ? 0 : 1;
        reach = 1;
      }
      end_.path.push_back(child);
      if (visit(child, reach)) return true;
      end_.path.pop_back();
      if (rest) left = *rest;
    }
    if (left.p == 0 || (node > 0 && !tree_.decide(node, left.p))) return false;
    end_.residual = left.residual;
    return true;
  }
  bool is_nonsense() {
    end_ = {};
    return true;
  }

  Tree& tree_;
  Ending<Number> end_;
};

template <class Number, class Rest = RestOf, class Tree>
Ending<Number> verify_by_sequences(Tree& tree) {
  return BySequences<Number, Rest, Tree>(tree).run();
}

}  // namespace tandem
