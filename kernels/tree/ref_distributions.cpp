#include "kernels/tree/ref_distributions.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/sample/kept_ref.h"

namespace tandem {
namespace {

Distribution<double> normalized(Distribution<double> ps) {
  const double sum = std::accumulate(ps.begin(), ps.end(), 0.0);
  for (double& p : ps) p /= sum;
  return ps;
}

}  // namespace

RefDistributions::RefDistributions(const VerifyTreesParams& p, int b)
    : p_(p), b_(b), begin_(p.node_begin[b]), parent_(static_cast<size_t>(n_nodes()), -1) {
  for (int node = 0; node < n_nodes(); ++node)
    for (int i = 0; i < n_children(node); ++i) parent_[static_cast<size_t>(child(node, i))] = node;
}

Distribution<double> RefDistributions::target(int node) const {
  return normalized(weights_of(p_.target, row_of(p_.target_logits, p_.target_row, node), node));
}

Distribution<double> RefDistributions::proposal(int node, int i) const {
  const auto token_at = [&](int j) { return static_cast<size_t>(token(child(node, j))); };
  Distribution<double> point(static_cast<size_t>(p_.vocab));
  point[token_at(i)] = 1;
  if (i >= p_.n_drawn) return point;
  Distribution<double> weights = drafted(node);
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
                       row_of(p_.draft_logits, p_.draft_row, node), node);
  for (double& w : weights) w = std::max(w, 1.0);
  for (int j = 0; j < i; ++j) weights[token_at(j)] = 0;
  return normalized(weights);
}

const Distribution<double>& RefDistributions::drafted(int node) const {
  if (drafted_node_ != node)
    drafted_ = weights_of(p_.draft, row_of(p_.draft_logits, p_.draft_row, node), node);
  drafted_node_ = node;
  return drafted_;
}

Distribution<double> RefDistributions::weights_of(const KeepRule& rule, const float* row,
                                                  int node) const {
  std::vector<int32_t> seen;
  if (p_.seen != nullptr) seen.assign(p_.seen + p_.seen_begin[b_], p_.seen + p_.seen_begin[b_ + 1]);
  for (; node > 0; node = parent_[static_cast<size_t>(node)]) seen.push_back(token(node));
  Distribution<double> weights = kept_weights_ref(rule, row, p_.vocab, seen);
  for (double& w : weights) w = std::floor(w * 0x1p40);  // no less is a weight
  return weights;
}

}  // namespace tandem
