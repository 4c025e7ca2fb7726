#pragma once
#include <vector>

#include "ops/verification.h"
#include "speculate/tree/token_tree.h"

namespace tandem::speculate {

/// A path that verification might have accepted, drawn from an acceptance vector instead: at each
/// node its k-th child with the k-th probability. For timing rounds of models whose own acceptance
/// says nothing, such as those with random weights; such texts are no samples of a model,
/// and records must say so.
/// returns  accepted nodes in order, the root left out
std::vector<int> simulated_path(const TokenTree& tree, const AcceptanceVector& acceptance,
                                const ops::RoundName& round);

}  // namespace tandem::speculate
