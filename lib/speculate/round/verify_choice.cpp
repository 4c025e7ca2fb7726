#include "speculate/round/verify_choice.h"

#include <algorithm>

#include "base/error.h"

namespace tandem::speculate {

std::string_view rule_name(AcceptBy rule) {
  switch (rule) {
    case AcceptBy::match:
      return "match";
    case AcceptBy::sequoia:
      return "sequoia";
    case AcceptBy::block:
      return "block";
    case AcceptBy::floor:
      return "floor";
    case AcceptBy::floor_or_argmax:
      return "floor_or_argmax";
    case AcceptBy::typical:
      return "typical";
    case AcceptBy::traversal:
      break;
  }
  return "traversal";
}

AcceptBy rule_for(VerifyChoice choice, bool draws, const TokenTree& tree, bool is_light) {
  const auto refuse = [&](std::string_view why, const char* hint) {
    return recipe_error("spec.verify", "is {}, {}", enum_names(choice)[static_cast<size_t>(choice)],
                        why)
        .hint(hint);
  };
  if (choice == VerifyChoice::floor) return AcceptBy::floor;
  if (choice == VerifyChoice::floor_or_argmax) return AcceptBy::floor_or_argmax;
  if (choice == VerifyChoice::typical) return AcceptBy::typical;
  const int widest = std::ranges::max(tree.n_children);
  if (!draws) {
    if (choice == VerifyChoice::automatic || choice == VerifyChoice::match) return AcceptBy::match;
    throw refuse("which needs sampled draft tokens; this draft does not sample",
                 "choose spec.verify=match, or auto");
  }
  switch (choice) {
    case VerifyChoice::automatic:
      // Measured: tiny-16m with chains of 2 and 4 and two chains of 3 (gpu-h200-verify-pair.jsonl).
      if (tree.levels() <= 2 || (is_light && (widest > 1 || tree.levels() <= 4)))
        return AcceptBy::sequoia;
      return widest <= 1 ? AcceptBy::block : AcceptBy::traversal;
    case VerifyChoice::match:
      return AcceptBy::match;
    case VerifyChoice::sequoia:
      return AcceptBy::sequoia;
    case VerifyChoice::block:
      if (widest > 1)
        throw refuse(
            fmt::format("which only supports linear drafts; a node of this tree has {} children",
                        widest),
            "choose spec.verify=traversal or auto, or a linear draft: -s tree.path= -s "
            "spec.gamma=N");
      return AcceptBy::block;
    default:
      return AcceptBy::traversal;
  }
}

}  // namespace tandem::speculate
