#pragma once
#include <optional>
#include <span>

// Tokens of a round whose draft is a chain: gamma drafted tokens, each accepted with probability
// alpha once those before it are, and one more of the target's.
namespace tandem::speculate {

/// Expected tokens of a round, from 1 to gamma + 1; gamma 0 is plain decoding.
/// source   MagicDec, section 3.1: Omega(gamma, alpha) = (1 - alpha^(gamma+1)) / (1 - alpha)
double chain_tokens(int gamma, double alpha);
/// The mean over sequences with an alpha each, which is not that of their mean alpha.
double chain_tokens(int gamma, std::span<const double> alphas);

/// Parameters that a token uses, over those of the whole model, of rounds that draft k - 1 tokens
/// with a share `density` of them and verify with all once.
/// advance  tokens of a round
/// source   Sirius (arXiv 2409.03856): APU = (1 + (k - 1) d_s) / AAL; all rows of the verification
///          count as one pass, beams as their chain
constexpr double params_per_token(double k, double density, double advance) {
  return (1 + (k - 1) * density) / advance;
}

/// The alpha with which a round gives that many tokens; 0 for a single one, none where gamma + 1
/// tokens are not enough.
std::optional<double> alpha_for(int gamma, double tokens);

}  // namespace tandem::speculate
