#pragma once
// Verification by floors on a GPU: the paths, without the tokens after them. No STL: included by
// CUDA sources.
#include "kernels/tree/verify_trees.h"

namespace tandem {

/// Of a rule with a floor: path, n_accepted and n_rounded of each tree, and with logprobs those of
/// the path. Its workspace is that of rules by sequences.
/// cost     a block a node with children reads its row twice, of all nodes
VerifyTreesCudaFn find_floor_paths;

}  // namespace tandem
