#include "eval/level_tests.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "kernels/sample/weights.h"
#include "kernels/tree/ref_distributions.h"

namespace tandem::eval {
namespace {

using Sums = LevelTests::Sums;
using Probabilities = std::span<const double>;

/// Adds a token of an event that has this probability, with a weight known before it.
void add_event(TokenTest& test, bool found, double probability, double weight = 1) {
  test.found += weight * (found ? 1 : 0);
  test.expected += weight * probability;
  test.variance += weight * weight * probability * (1 - probability);
}

/// Adds where a token lies among the ids: the sum of all probabilities before it and half of its
/// probability. Its mean is 1/2, its variance (1 - sum of p^3) / 12.
void add_place(TokenTest& test, Probabilities p, size_t token) {
  double cubes = 0, before = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    cubes += p[i] * p[i] * p[i];
    if (i < token) before += p[i];
  }
  test.found += before + p[token] / 2;
  test.expected += 0.5;
  test.variance += (1 - cubes) / 12;
}

/// The softmax of a row, good to 2e-7: the distribution of a rule without cuts and penalties.
Distribution<double> softmax_of(const float* row, int vocab, float temperature) {
  const float max = *std::max_element(row, row + vocab);
  Distribution<double> p(static_cast<size_t>(vocab));
  double sum = 0;
  for (int i = 0; i < vocab; ++i)
    p[static_cast<size_t>(i)] = double{scaled_exp((row[i] - max) / temperature)};
  for (const double x : p) sum += x;
  for (double& x : p) x /= sum;
  return p;
}

/// The distributions at the nodes of the b-th sequence's tree.
class Nodes : public RefDistributions {
 public:
  Nodes(const VerifyTreesParams& p, int b)
      : RefDistributions(p, b),
        is_plain_(!has_cuts(p.target, p.vocab) && p.target.repetition_penalty == 1) {}

  Distribution<double> target(int node) const {
    if (!is_plain_) return RefDistributions::target(node);
    return softmax_of(row_of(p_.target_logits, p_.target_row, node), p_.vocab,
                      p_.target.temperature);
  }
  Distribution<double> draft(int node) const {
    if (!is_plain_) return proposal(node, 0);
    return softmax_of(row_of(p_.draft_logits, p_.draft_row, node), p_.vocab, p_.draft.temperature);
  }

 private:
  bool is_plain_;
};

/// Adds the tokens of the b-th sequence.
void add_sequence(const VerifyTreesParams& params, int b, bool draws, Sums& sums) {
  auto& [preferred, likeliest, in_a_row, place] = sums.tests;
  const Nodes tree(params, b);
  const int32_t first = params.node_begin[b], n_accepted = params.n_accepted[b];
  int node = 0;
  double surprise = 0;  // 1 if the last token was the likeliest, else 0, less the probability
  for (int i = 0; i <= n_accepted; ++i) {
    const int32_t next = i < n_accepted ? params.path[first + i] : -1;
    const auto token = static_cast<size_t>(next < 0 ? params.bonus[b] : tree.token(next));
    const Distribution<double> p = tree.target(node);
    ++sums.tokens;
    if (const int n = tree.n_children(node); n > 0) {
      double probability = 0;
      bool found = false;
      const auto add = [&](size_t id) {
        probability += p[id];
        found = found || id == token;
      };
      if (draws) {
        const Distribution<double> q = tree.draft(node);
        for (size_t id = 0; id < p.size(); ++id)
          if (q[id] > p[id]) add(id);
      } else {
        for (int c = 0; c < n; ++c) add(static_cast<size_t>(tree.token(tree.child(node, c))));
      }
      add_event(preferred, found, std::min(probability, 1.0));
    }
    const auto best = std::ranges::max_element(p);
    const bool is_best = static_cast<size_t>(best - p.begin()) == token;
    add_event(likeliest, is_best, *best);
    add_event(in_a_row, is_best, *best, surprise);
    surprise = (is_best ? 1 : 0) - *best;
    add_place(place, p, token);
    node = next;
  }
}

}  // namespace

double TokenTest::p() const {
  const double distance = std::abs(found - expected);
  if (distance == 0) return 1;
  if (variance >= 100) return std::erfc(distance / std::sqrt(2 * variance));
  return std::min(1.0, 2 * std::exp(-distance * distance / (2 * (variance + distance / 3))));
}

void LevelTests::add(const speculate::Round& round, const Tensor& logits) {
  const VerifyTreesParams params =
      round.verification(logits, draws_ ? AcceptBy::sequoia : AcceptBy::match);
  if (params.target.temperature == 0) return;
  std::vector<Sums> of_sequence(round.n_seqs());
  parallel_for(static_cast<int>(of_sequence.size()), [&](int b) {
    const auto i = static_cast<size_t>(b);
    if (!round.is_within() || round.took_part(i)) add_sequence(params, b, draws_, of_sequence[i]);
  });
  for (const Sums& s : of_sequence) {
    sums_.tokens += s.tokens;
    for (size_t t = 0; t < kNames.size(); ++t) {
      sums_.tests[t].found += s.tests[t].found;
      sums_.tests[t].expected += s.tests[t].expected;
      sums_.tests[t].variance += s.tests[t].variance;
    }
  }
}

}  // namespace tandem::eval
