// Straightforward and independent of the bodies: distributions as vectors of doubles over the
// vocabulary, normalised after every step.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/sample/kept_ref.h"
#include "kernels/tree/verify_trees.h"
#include "kernels/tree/verify_workspace.h"

namespace tandem {
namespace {

using Probabilities = std::vector<double>;  // by token; empty for a row without meaning

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

class RefWalk {
 public:
  RefWalk(const VerifyTreesParams& p, int b) : p_(p), b_(b), begin_(p.node_begin[b]) {
    if (p.seen != nullptr) seen_.assign(p.seen + p.seen_begin[b], p.seen + p.seen_begin[b + 1]);
  }

  void run() {
    int& n = p_.n_accepted[b_] = 0;
    p_.n_rounded[b_] = 0;
    for (int node = 0;;) {
      const float* row = p_.target_logits + int64_t{p_.target_row[begin_ + node]} * p_.vocab;
      int child = -1;
      const int token = decide(node, row, child);
      if (p_.logprobs != nullptr && token != kInvalidToken)
        p_.logprobs[begin_ + n] = static_cast<float>(row[token] - log_sum_exp(row));
      if (child < 0) {
        p_.bonus[b_] = token;
        return;
      }
      seen_.push_back(token);
      p_.path[begin_ + n++] = node = child;
    }
  }

 private:
  Probabilities distribution_of(const KeepRule& rule, const float* row) const {
    Probabilities weights = kept_weights_ref(rule, row, p_.vocab, seen_);
    for (double& w : weights) w = std::floor(w * 0x1p40);  // no less is a weight
    return weights.empty() ? weights : normalized(weights);
  }

  double log_sum_exp(const float* row) const {
    const double max = *std::max_element(row, row + p_.vocab);
    double sum = 0;
    for (int i = 0; i < p_.vocab; ++i) sum += std::exp(row[i] - max);
    return max + std::log(sum);
  }

  /// The token, and the child that it is or -1.
  int decide(int node, const float* row, int& child) {
    const int first = p_.first_child[begin_ + node], n = p_.n_children[begin_ + node];
    Probabilities residual = distribution_of(p_.target, row);
    if (residual.empty()) return kInvalidToken;
    const RoundNames names = names_of(p_.numbers, b_);
    const bool is_rest = p_.accept_by == AcceptBy::residual && n > 0;
    const double uniform = uniform_after(names, node, p_.n_accepted[b_], is_rest);
    if (p_.accept_by == AcceptBy::match || p_.target.temperature == 0 || n == 0) {
      const int token = draw_from(residual, uniform);
      for (int i = n - 1; i >= 0; --i)
        if (p_.tokens[begin_ + first + i] == token) child = first + i;
      return token;
    }
    Probabilities proposal = distribution_of(
        p_.draft, p_.draft_logits + int64_t{p_.draft_row[begin_ + node]} * p_.vocab);
    if (proposal.empty()) return kInvalidToken;
    std::vector<bool> tried(residual.size());
    for (int i = 0; i < n; ++i) {
      const int token = p_.tokens[begin_ + first + i];
      const auto at = static_cast<size_t>(token);
      if (coin_of(names, first + i) * proposal[at] < residual[at]) {
        child = first + i;
        return token;
      }
      double left = 0;
      for (size_t x = 0; x < residual.size(); ++x) left += std::max(residual[x] - proposal[x], 0.0);
      if (left < 1e-12) {
        ++p_.n_rounded[b_];
        child = first + i;
        return token;
      }
      for (size_t x = 0; x < residual.size(); ++x)
        residual[x] = std::max(residual[x] - proposal[x], 0.0) / left;
      tried[at] = true;
      proposal[at] = 0;
      if (std::all_of(proposal.begin(), proposal.end(), [](double q) { return q == 0; }))
        for (size_t x = 0; x < tried.size(); ++x) proposal[x] = tried[x] ? 0 : 1;
      proposal = normalized(proposal);
    }
    return draw_from(residual, uniform);
  }

  const VerifyTreesParams& p_;
  int b_, begin_;
  std::vector<int32_t> seen_;
};

}  // namespace

size_t verify_workspace_bytes(int vocab) { return lay_out_verify(nullptr, vocab).bytes; }

void verify_trees_ref(const VerifyTreesParams& p, Range seqs) {
  for (int b = seqs.begin; b < seqs.end; ++b) RefWalk(p, b).run();
}

}  // namespace tandem
