#include "tools/draft_acceptance/recipe.h"

#include <fmt/format.h>

#include "recipe/fields_of.h"

namespace tandem::tools {

std::vector<NamedDraft> AcceptanceBench::all_drafts() const {
  std::vector<NamedDraft> all;
  for (const NamedDraft& draft : drafts) {
    if (!draft.bounded() || budgets.empty()) {
      all.push_back(draft);
      continue;
    }
    for (const recipe::TokenCount budget : budgets) {
      NamedDraft& one = all.emplace_back(draft);
      one.budget = budget;
      one.name = fmt::format("{} {}", draft.name, budget.value);
    }
  }
  return all;
}

void AcceptanceBench::check(recipe::Problems& p) const {
  check_drafts(all_drafts(), p);
  for (const NamedDraft& d : drafts) {
    if (!d.proposes_by_model())
      p.field(
          "drafts",
          "bench.drafts: '{}' is of kind {}, and no model alone draws its tokens; choose kind self "
          "or model, or measure it with magicdec-bench",
          d.name, recipe::yaml_text(d.kind));
    if (!d.tree.empty())
      p.field("drafts",
              "bench.drafts: '{}' proposes a tree, chains are measured here; leave tree out, or "
              "measure it with sequoia-acceptance",
              d.name);
  }
  if (temperatures.empty()) p.field("temperatures", "bench.temperatures: name one at least");
}

void DraftAcceptanceRecipe::check(recipe::Problems& p) const {
  if (run.context.value < 2)
    p.field("run.context", "run.context: expected prompts of 2 tokens or more, found {}",
            run.context.value);
  if (run.batch < 1) p.field("run.batch", "run.batch: expected a number of prompts, found 0");
  if (spec.gamma >= bench.new_tokens)
    p.field("spec.gamma",
            "spec.gamma: is {} tokens, but a prompt gets only {} new ones; lower it, or raise "
            "bench.new_tokens",
            spec.gamma, bench.new_tokens);
  if (!model.state.empty()) p.field("model.state", "model.state: states are read by pig-generate");
}

}  // namespace tandem::tools

template tandem::recipe::Field tandem::recipe::fields_of(tandem::tools::DraftAcceptanceRecipe&);
