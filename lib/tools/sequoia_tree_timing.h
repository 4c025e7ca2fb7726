#pragma once
#include "cli/context.h"
#include "tools/sequoia_tree_search.h"

namespace tandem::tools {

/// sequoia-tree-search --measure: times rounds of model.path with draft.path on this machine, trees
/// up to the largest of tree.sizes (128 nodes without), and writes a timing table to output.path.
/// With --dry-run prints the memory plan.
/// errors   kind input: models; kind recipe: contexts beyond the models'; kind memory, interrupted
int measure_timing(cli::Context& cx, const TreeSearchRecipe& recipe);

}  // namespace tandem::tools
