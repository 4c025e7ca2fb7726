#include "speculate/measure/rule_meter.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "ops/verification.h"

namespace tandem::speculate {
namespace {

/// What a rule accepts of trees on the host.
class Paths {
 public:
  explicit Paths(VerifyTreesParams p)
      : p_(p),
        path_(static_cast<size_t>(p.node_begin[p.n_seqs])),
        n_accepted_(static_cast<size_t>(p.n_seqs)),
        bonus_(n_accepted_.size()),
        n_rounded_(n_accepted_.size()) {
    p_.path = path_.data();
    p_.n_accepted = n_accepted_.data();
    p_.bonus = bonus_.data();
    p_.n_rounded = n_rounded_.data();
    p_.logprobs = nullptr;
    ops::verify_trees(p_, Stream{});
    ops::check_valid(bonus_);
  }
  std::span<const int32_t> of(size_t b) const {
    return {path_.data() + p_.node_begin[b], static_cast<size_t>(n_accepted_[b])};
  }
  int sequence(size_t b) const { return p_.numbers.sequence[b]; }

 private:
  VerifyTreesParams p_;
  std::vector<int32_t> path_, n_accepted_, bonus_, n_rounded_;
};

}  // namespace

RuleMeter::RuleMeter(std::span<const AcceptBy> rules) {
  TANDEM_CHECK(!rules.empty(), "no acceptance rules were given");
  for (const AcceptBy rule : rules) rules_.push_back({.rule = rule, .children = {}, .reached = {}});
}

void RuleMeter::add(const Round& round, const Tensor& logits) {
  TANDEM_CHECK(logits.device().kind == Device::Kind::cpu, "expected logits on the CPU");
  const TokenTree& tree = round.tree();
  const auto levels = static_cast<size_t>(tree.levels()) - 1;
  const auto widest = static_cast<size_t>(std::ranges::max(tree.n_children));
  for (size_t r = 0; r < rules_.size(); ++r) {
    RuleTokens& rule = rules_[r];
    rule.children.resize(std::max(rule.children.size(), levels));
    rule.reached.resize(rule.children.size());
    const Paths paths(round.verification(logits, rule.rule));
    for (size_t b = 0; b < round.n_seqs(); ++b) {
      const std::span<const int32_t> path = paths.of(b);
      ++rule.rounds;
      rule.accepted += static_cast<int64_t>(path.size());
      std::vector<double>& text = of_text_[paths.sequence(b)];
      text.resize(rules_.size());
      text[r] += 1 + static_cast<double>(path.size());
      int node = 0;
      for (size_t level = 0; level < levels && tree.n_children[static_cast<size_t>(node)] > 0;
           ++level) {
        ++rule.reached[level];
        rule.children[level].resize(std::max(rule.children[level].size(), widest));
        if (level == path.size()) break;
        const int child = path[level] - tree.first_child[static_cast<size_t>(node)];
        ++rule.children[level][static_cast<size_t>(child)];
        node = path[level];
      }
    }
  }
}

Difference RuleMeter::gain(size_t i) const {
  double base = 0, other = 0;
  for (const auto& [seq, tokens] : of_text_) base += tokens[0], other += tokens[i];
  const double ratio = other / base;
  // Of a ratio of sums over texts: the residuals' scatter (linearised).
  double squares = 0;
  for (const auto& [seq, tokens] : of_text_) {
    const double residual = tokens[i] - ratio * tokens[0];
    squares += residual * residual;
  }
  const auto n = static_cast<double>(of_text_.size());
  const double error = n > 1 ? std::sqrt(squares * n / (n - 1)) / base : 0;
  return {ratio - 1, 1.96 * error};
}

}  // namespace tandem::speculate
