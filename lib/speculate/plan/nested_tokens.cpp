#include "speculate/plan/nested_tokens.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace tandem::speculate {

double mean(const TokenDistribution& tokens) {
  double sum = 0;
  for (size_t n = 0; n < tokens.size(); ++n) sum += static_cast<double>(n) * tokens[n];
  return sum;
}

TokenDistribution round_tokens(const TokenTree& tree, const AcceptanceVector& acceptance) {
  const std::vector<double> scores = node_scores(tree, acceptance);
  TokenDistribution tokens(static_cast<size_t>(tree.levels()) + 1);
  for (size_t v = 0; v < scores.size(); ++v) {
    // The path ends at v unless it goes on to a child.
    const auto depth = static_cast<size_t>(tree.depth[v]);
    tokens[depth + 1] += scores[v];
    if (v > 0) tokens[depth] -= scores[v];
  }
  return tokens;
}

std::vector<TentativeChain> grow_chains(const TokenDistribution& inner, int enough, int n_rounds) {
  TANDEM_CHECK(enough > 0 && n_rounds > 0 && inner.size() > 1,
               "unexpected limits: {} tokens, {} inner steps, {} probabilities", enough, n_rounds,
               inner.size());
  const size_t levels = inner.size() - 1, wanted = static_cast<size_t>(enough);
  std::vector<TentativeChain> growth;
  TentativeChain chain{.tokens = {1}};
  while (std::ssize(growth) < n_rounds) {
    const TokenDistribution before = std::exchange(
        chain.tokens, TokenDistribution(std::min(chain.tokens.size(), wanted) + levels));
    chain.rounds += 1 - chain.has_enough;
    for (size_t n = 0; n < before.size(); ++n) {
      if (n >= wanted)
        chain.tokens[n] += before[n];
      else
        for (size_t k = 1; k <= levels; ++k) chain.tokens[n + k] += before[n] * inner[k];
    }
    const auto first =
        chain.tokens.begin() + static_cast<ptrdiff_t>(std::min(wanted, chain.tokens.size()));
    chain.has_enough = std::accumulate(first, chain.tokens.end(), 0.0);
    growth.push_back(chain);
  }
  return growth;
}

double rounds_until_all(std::span<const TentativeChain> growth, int batch) {
  double rounds = 1;
  for (const TentativeChain& chain : growth.first(growth.size() - 1))
    rounds += 1 - std::pow(chain.has_enough, batch);
  return rounds;
}

std::vector<double> tokens_by_length(int longest, const AcceptanceVector& acceptance) {
  std::vector<double> tokens = node_scores(chain_tree(longest + 1), acceptance);
  std::partial_sum(tokens.begin(), tokens.end(), tokens.begin());
  return tokens;
}

double nested_tokens(const TentativeChain& chain, std::span<const double> by_length) {
  TANDEM_CHECK(by_length.size() >= chain.tokens.size(), "found tokens for {} lengths, expected {}",
               by_length.size(), chain.tokens.size());
  return std::inner_product(chain.tokens.begin(), chain.tokens.end(), by_length.begin(), 0.0);
}

}  // namespace tandem::speculate
