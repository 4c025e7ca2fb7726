#pragma once
#include <span>
#include <vector>

#include "speculate/tree/token_tree.h"

// Tokens of rounds within rounds: inner rounds lengthen a tentative chain, each sequence's until it
// has `enough` tokens (gamma2), and an outer round verifies it.
namespace tandem::speculate {

/// Distribution of a number of tokens: entry n is the probability of n.
using TokenDistribution = std::vector<double>;

double mean(const TokenDistribution& tokens);

/// What a round yields: the accepted path and one token more. Its mean is expected_tokens.
/// shapes   [levels + 1], entry 0 is 0
TokenDistribution round_tokens(const TokenTree& tree, const AcceptanceVector& acceptance);

/// The tentative chain of one sequence after some inner rounds.
struct TentativeChain {
  TokenDistribution tokens;  // [longest + 1]
  double rounds = 0;         // that the sequence took part in, expected
  double has_enough = 0;     // probability

  int longest() const { return static_cast<int>(tokens.size()) - 1; }
};

/// Chains after 1 .. n_rounds inner rounds. They end with `enough` to enough - 1 + levels tokens,
/// or with fewer where rounds are too few; `enough` rounds always do.
/// inner    round_tokens of an inner round
/// source   TriForce, section 10 of its specification, for batches and any tree
std::vector<TentativeChain> grow_chains(const TokenDistribution& inner, int enough, int n_rounds);

/// Inner rounds, expected, of a loop that ends when the last of `batch` sequences has enough.
/// growth   of `enough` rounds
double rounds_until_all(std::span<const TentativeChain> growth, int batch);

/// Tokens, expected, of a round that verifies a chain of n, for n = 0 .. longest: Omega(n, alpha),
/// and with rows by depth, such as those that a rule was counted with, that of the rule.
std::vector<double> tokens_by_length(int longest, const AcceptanceVector& acceptance);

/// Tokens, expected, of an outer round.
/// by_length  tokens_by_length of the outer verification, up to the longest chain at least
double nested_tokens(const TentativeChain& chain, std::span<const double> by_length);

}  // namespace tandem::speculate
