#include "speculate/tree/tree_replay.h"

#include <cmath>
#include <map>
#include <numeric>

#include "base/check.h"

namespace tandem::speculate {
namespace {

double mean_of(std::span<const double> xs) {
  return std::accumulate(xs.begin(), xs.end(), 0.0) / static_cast<double>(xs.size());
}

/// Sum of `tokens` over that of `base`, by texts; the error is linearised.
MeanOfRounds ratio_of(std::span<const double> tokens, std::span<const double> base,
                      std::span<const int32_t> text) {
  struct Sums {
    double tokens = 0, base = 0;
  };
  std::map<int32_t, Sums> of_text;
  Sums all;
  for (size_t r = 0; r < text.size(); ++r) {
    Sums& sums = of_text[text[r]];
    sums.tokens += tokens[r];
    sums.base += base[r];
    all.tokens += tokens[r];
    all.base += base[r];
  }
  const double ratio = all.tokens / all.base;
  double squares = 0;
  for (const auto& [name, sums] : of_text)
    squares += (sums.tokens - ratio * sums.base) * (sums.tokens - ratio * sums.base);
  const auto n = static_cast<double>(of_text.size());
  return {ratio, n > 1 ? std::sqrt(squares * n / (n - 1)) / all.base : 0};
}

}  // namespace

int size_of(const SubShape& shape) { return 1 + std::accumulate(shape.begin(), shape.end(), 0); }

TokenTree tree_of(const SubShape& shape, const TokenTree& recorded) {
  std::vector<int> nodes = {0}, n_children;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto v = static_cast<size_t>(nodes[i]);
    n_children.push_back(shape[v]);
    for (int k = 0; k < shape[v]; ++k) nodes.push_back(recorded.first_child[v] + k);
  }
  return tree_of_children(n_children, "shape");
}

std::optional<SubShape> shape_in(const TokenTree& recorded, const TokenTree& tree) {
  SubShape shape(recorded.parent.size());
  std::vector<size_t> nodes = {0};
  for (size_t v = 0; v < tree.parent.size(); ++v) {
    const size_t at = nodes[v];
    if (tree.n_children[v] > recorded.n_children[at]) return {};
    shape[at] = tree.n_children[v];
    for (int k = 0; k < tree.n_children[v]; ++k)
      nodes.push_back(static_cast<size_t>(recorded.first_child[at] + k));
  }
  return shape;
}

TreeReplay::TreeReplay(TreeRounds rounds, AcceptBy rule)
    : rounds_(std::move(rounds)), rule_(rule), path_(rounds_.take) {
  TANDEM_CHECK(rule != AcceptBy::match, "replay does not support the acceptance rule match");
  TANDEM_CHECK(rounds_.size() > 0, "found no steps to replay");
  for (size_t v = 1; v < path_.size(); ++v) {
    const std::vector<double>& above = path_[static_cast<size_t>(tree().parent[v])];
    for (size_t r = 0; r < above.size(); ++r) path_[v][r] *= above[r];
  }
}

/// State of the rounds in the order of visits.
struct TreeReplay::Walk {
  std::vector<double> open;    // that no path has ended yet
  std::vector<double> tokens;  // expected so far
};

void TreeReplay::visit(int node, const SubShape& shape, Walk& walk) const {
  const auto v = static_cast<size_t>(node);
  const int n = shape[v], first = n > 0 ? tree().first_child[v] : 0;
  for (int i = 0; i < n; ++i) visit(first + i, shape, walk);
  if (node == 0) return;  // the path ends here at the latest, with the bonus token alone
  const double* ends =
      n > 0 ? rounds_.rest[static_cast<size_t>(first + n) - 1].data() : rounds_.reach[v].data();
  double *open = walk.open.data(), *tokens = walk.tokens.data();
  const double depth = tree().depth[v];
  for (size_t r = 0; r < walk.open.size(); ++r) {
    const double here = open[r] * ends[r];
    tokens[r] += depth * here;
    open[r] -= here;
  }
}

std::vector<double> TreeReplay::tokens_by_round(const SubShape& shape) const {
  const size_t n = rounds_.size();
  if (rule_ != AcceptBy::sequoia) {
    Walk walk{std::vector<double>(n, 1), std::vector<double>(n, 1)};
    visit(0, shape, walk);
    return walk.tokens;
  }
  std::vector<double> tokens(n, 1);
  for (size_t v = 0; v < shape.size(); ++v)
    for (int i = 0; i < shape[v]; ++i) {
      const std::vector<double>& path = path_[static_cast<size_t>(tree().first_child[v] + i)];
      for (size_t r = 0; r < n; ++r) tokens[r] += path[r];
    }
  return tokens;
}

double TreeReplay::tokens(const SubShape& shape) const { return mean_of(tokens_by_round(shape)); }

MeanOfRounds TreeReplay::mean_tokens(const SubShape& shape) const {
  const std::vector<double> ones(rounds_.size(), 1);
  return ratio_of(tokens_by_round(shape), ones, rounds_.text);
}

MeanOfRounds TreeReplay::gain(const SubShape& shape, const SubShape& base) const {
  MeanOfRounds gain = ratio_of(tokens_by_round(shape), tokens_by_round(base), rounds_.text);
  gain.mean -= 1;
  return gain;
}

std::vector<double> TreeReplay::sequoia_scores() const {
  std::vector<double> scores;
  for (const std::vector<double>& path : path_) scores.push_back(mean_of(path));
  return scores;
}

}  // namespace tandem::speculate
