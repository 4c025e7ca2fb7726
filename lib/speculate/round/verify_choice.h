#pragma once
#include <array>
#include <string_view>

#include "kernels/tree/verify_trees.h"
#include "speculate/tree/token_tree.h"

namespace tandem::speculate {

/// The rule that a recipe wants, `spec.verify`.
enum class VerifyChoice : uint8_t { automatic, match, sequoia, block, traversal };
constexpr std::array<std::string_view, 5> enum_names(VerifyChoice) {
  return {"auto", "match", "sequoia", "block", "traversal"};
}

/// What records call a rule.
std::string_view rule_name(AcceptBy rule);

/// The rule that rounds verify by. automatic: by match where children are not drawn; else the rule
/// that accepts most, block for chains and traversal for trees. Where no node has grandchildren
/// that is sequoia, which then decides the same.
/// draws    whether children are drawn from a draft's distribution
/// tree     the largest that is proposed
/// errors   kind recipe: a rule that these trees do not follow
AcceptBy rule_for(VerifyChoice choice, bool draws, const TokenTree& tree);

}  // namespace tandem::speculate
