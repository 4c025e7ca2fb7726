#pragma once
#include <vector>

#include "recipe/upgrade.h"

namespace tandem::speculate {

/// Rewrites the keys that `generate` recipes had for drafts into those of section `spec`, and
/// spells `spec.draft: ngram` out as a kind. A key that only another kind has is left out, where
/// readers of the old keys ignored it.
/// over     a recipe, or settings
/// base     what lies below it, rewritten, and perhaps `over` itself: twice gives the same
std::vector<recipe::Renaming> upgrade_spec(recipe::Node& over, const recipe::Node& base);

/// Moves section `draft` of tools that measure a target with one other model into `spec`, and does
/// as upgrade_drafts.
std::vector<recipe::Renaming> upgrade_pair(recipe::Node& over, const recipe::Node& base);

/// Rewrites items of bench.drafts that name their policy by `keys`, as upgrade_spec has it. An item
/// without a policy had a streaming one.
std::vector<recipe::Renaming> upgrade_drafts(recipe::Node& over, const recipe::Node& base);

}  // namespace tandem::speculate
