#pragma once
#include <array>
#include <string_view>

#include "kernels/tree/verify_trees.h"
#include "speculate/tree/token_tree.h"

namespace tandem::speculate {

/// The rule that a recipe wants, `spec.verify`.
enum class VerifyChoice : uint8_t {
  automatic,
  match,
  sequoia,
  block,
  traversal,
  floor,
  floor_or_argmax,
  typical
};
constexpr std::array<std::string_view, 8> enum_names(VerifyChoice) {
  return {"auto", "match", "sequoia", "block", "traversal", "floor", "floor_or_argmax", "typical"};
}
/// As of AcceptBy.
constexpr bool weighs_draws(VerifyChoice choice) {
  return choice > VerifyChoice::match && choice < VerifyChoice::floor;
}
constexpr bool is_lossy(VerifyChoice choice) { return choice >= VerifyChoice::floor; }

/// A rule, and what its floor is if it has one.
struct AcceptRule {
  AcceptBy by = AcceptBy::match;
  FloorRule floor = {};
  AcceptRule(AcceptBy rule, const FloorRule& of = {}) : by(rule), floor(of) {}
};

/// What records call a rule.
std::string_view rule_name(AcceptBy rule);

/// Weights of a target on a GPU, in bytes, below which a round is too short for rules by sequences:
/// they accept more, but take some 20 us more than sequoia does.
inline constexpr double kLightTarget = 256e6;

/// The rule that rounds verify by. automatic: by match where children are not drawn; else the rule
/// that accepts most, block for chains and traversal for trees, or sequoia: where no node has
/// grandchildren, since it decides the same, and where the others take longer than they win.
/// draws    whether children are drawn from a draft's distribution
/// tree     the largest that is proposed
/// is_light  the target computes on a GPU and has less than kLightTarget
/// errors   kind recipe: a rule that these trees do not follow
AcceptBy rule_for(VerifyChoice choice, bool draws, const TokenTree& tree, bool is_light);

}  // namespace tandem::speculate
