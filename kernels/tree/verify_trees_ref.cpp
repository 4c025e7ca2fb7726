// Straightforward and independent of the bodies: distributions as vectors of doubles over the
// vocabulary, normalised after every step.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/sample/kept_ref.h"
#include "kernels/tree/rules_ref.h"
#include "kernels/tree/verify_trees.h"
#include "kernels/tree/verify_workspace.h"

namespace tandem {
namespace {

using Probabilities = Distribution<double>;  // by token; empty for a row without meaning

Probabilities normalized(Probabilities ps) {
  const double sum = std::accumulate(ps.begin(), ps.end(), 0.0);
  for (double& p : ps) p /= sum;
  return ps;
}

int draw_from(const Probabilities& ps, double uniform) {
  double mass = 0;
  int last = 0;
  for (size_t id = 0; id < ps.size(); ++id) {
    if (ps[id] == 0) continue;
    last = static_cast<int>(id);
    if ((mass += ps[id]) > uniform) break;
  }
  return last;
}

/// The tree of one sequence, as rules_ref.h reads it.
class RefTree {
 public:
  RefTree(const VerifyTreesParams& p, int b)
      : p_(p),
        b_(b),
        begin_(p.node_begin[b]),
        parent_(n_nodes(), -1),
        names_(names_of(p.numbers, b)) {
    for (int node = 0; node < static_cast<int>(n_nodes()); ++node)
      for (int i = 0; i < n_children(node); ++i)
        parent_[static_cast<size_t>(child(node, i))] = node;
  }

  void run() {
    Ending<double> end = p_.accept_by == AcceptBy::match || p_.target.temperature == 0 ? match()
                         : p_.accept_by == AcceptBy::sequoia ? verify_by_nodes<double>(*this)
                                                             : verify_by_sequences<double>(*this);
    const int last = end.path.empty() ? 0 : end.path.back(), n = static_cast<int>(end.path.size());
    const bool is_rest = p_.accept_by != AcceptBy::match && n_children(last) > 0;
    const int bonus = end.residual.empty()
                          ? kInvalidToken
                          : draw_from(end.residual, uniform_after(names_, last, n, is_rest));
    std::copy(end.path.begin(), end.path.end(), p_.path + begin_);
    p_.n_accepted[b_] = n;
    p_.bonus[b_] = bonus;
    p_.n_rounded[b_] = end.n_rounded;
    if (p_.logprobs == nullptr) return;
    for (int i = 0; i <= n; ++i) {
      const int after = i > 0 ? end.path[static_cast<size_t>(i) - 1] : 0;
      const int id = i < n ? token(end.path[static_cast<size_t>(i)]) : bonus;
      if (id == kInvalidToken) continue;
      const float* row = row_of(p_.target_logits, p_.target_row, after);
      p_.logprobs[begin_ + i] = static_cast<float>(row[id] - log_sum_exp(row));
    }
  }

  int n_children(int node) const { return p_.n_children[begin_ + node]; }
  int child(int node, int i) const { return p_.first_child[begin_ + node] + i; }
  int token(int node) const { return p_.tokens[begin_ + node]; }
  bool decide(int node, double probability) const { return coin_of(names_, node) < probability; }
  bool is_nothing(double x) const { return x < 1e-12; }

  Probabilities target(int node) const {
    return normalized(weights_of(p_.target, row_of(p_.target_logits, p_.target_row, node), node));
  }

  Probabilities proposal(int node, int i) const {
    const auto token_at = [&](int j) { return static_cast<size_t>(token(child(node, j))); };
    Probabilities point(static_cast<size_t>(p_.vocab));
    point[token_at(i)] = 1;
    if (i >= p_.n_drawn) return point;
    const float* row = row_of(p_.draft_logits, p_.draft_row, node);
    Probabilities weights = weights_of(p_.draft, row, node);
    if (weights.empty()) return {};
    for (int j = 0; j < i; ++j) weights[token_at(j)] = 0;
    if (std::any_of(weights.begin(), weights.end(), [](double q) { return q > 0; }))
      return normalized(weights);
    // All that the rule keeps are tried.
    weights = weights_of({.repetition_penalty = p_.draft.repetition_penalty,
                          .temperature = p_.draft.temperature,
                          .top_k = 0,
                          .top_p = 1,
                          .min_p = 0},
                         row, node);
    for (double& w : weights) w = std::max(w, 1.0);
    for (int j = 0; j < i; ++j) weights[token_at(j)] = 0;
    return normalized(weights);
  }

 private:
  size_t n_nodes() const { return static_cast<size_t>(p_.node_begin[b_ + 1] - begin_); }
  const float* row_of(const float* logits, const int32_t* row, int node) const {
    return logits + int64_t{row[begin_ + node]} * p_.vocab;
  }

  Probabilities weights_of(const KeepRule& rule, const float* row, int node) const {
    std::vector<int32_t> seen;
    if (p_.seen != nullptr)
      seen.assign(p_.seen + p_.seen_begin[b_], p_.seen + p_.seen_begin[b_ + 1]);
    for (; node > 0; node = parent_[static_cast<size_t>(node)]) seen.push_back(token(node));
    Probabilities weights = kept_weights_ref(rule, row, p_.vocab, seen);
    for (double& w : weights) w = std::floor(w * 0x1p40);  // no less is a weight
    return weights;
  }

  double log_sum_exp(const float* row) const {
    const double max = *std::max_element(row, row + p_.vocab);
    double sum = 0;
    for (int i = 0; i < p_.vocab; ++i) sum += std::exp(row[i] - max);
    return max + std::log(sum);
  }

  /// Every token is drawn from the target; the path goes on while a child has it.
  Ending<double> match() const {
    Ending<double> end;
    for (int node = 0;;) {
      end.residual = target(node);
      if (end.residual.empty()) return end;
      const bool is_rest = p_.accept_by != AcceptBy::match && n_children(node) > 0;
      const int id = draw_from(
          end.residual, uniform_after(names_, node, static_cast<int>(end.path.size()), is_rest));
      int next = -1;
      for (int i = n_children(node) - 1; i >= 0; --i)
        if (token(child(node, i)) == id) next = child(node, i);
      if (next < 0) return end;
      end.path.push_back(node = next);
    }
  }

  const VerifyTreesParams& p_;
  int b_, begin_;
  std::vector<int> parent_;
  RoundNames names_;
};

}  // namespace

size_t verify_workspace_bytes(int vocab, int nodes) {
  return lay_out_verify(nullptr, vocab, nodes).bytes;
}

void verify_trees_ref(const VerifyTreesParams& p, Range seqs) {
  for (int b = seqs.begin; b < seqs.end; ++b) RefTree(p, b).run();
}

}  // namespace tandem
