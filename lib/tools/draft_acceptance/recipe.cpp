#include "tools/draft_acceptance/recipe.h"

#include <fmt/format.h>

#include <algorithm>

#include "recipe/fields_of.h"

namespace tandem::tools {

std::vector<speculate::NamedDraft> AcceptanceBench::all_drafts() const {
  const auto has_budgets = [&](const std::string& name) {
    const auto at = std::ranges::find(drafts, name, &speculate::NamedDraft::name);
    return at != drafts.end() && at->budget.has_value();
  };
  std::vector<speculate::NamedDraft> all;
  for (const speculate::NamedDraft& draft : drafts) {
    const bool by_self = has_budgets(draft.self), by_small = has_budgets(draft.small);
    if (!(draft.budget || by_self || by_small) || budgets.empty()) {
      all.push_back(draft);
      continue;
    }
    for (const recipe::TokenCount budget : budgets) {
      const auto under = [&](const std::string& name) {
        return fmt::format("{} {}", name, budget.value);
      };
      speculate::NamedDraft& one = all.emplace_back(draft);
      one.name = under(draft.name);
      if (draft.budget) one.budget = budget;
      if (by_self) one.self = under(draft.self);
      if (by_small) one.small = under(draft.small);
    }
  }
  return all;
}

void AcceptanceBench::check(recipe::Problems& p) const {
  speculate::check_drafts(all_drafts(), budgets.empty() ? "" : "budgets", p);
  for (const speculate::NamedDraft& d : drafts) {
    if (!d.proposes_by_model() && d.kind != speculate::DraftKind::nested)
      p.field("drafts",
              "bench.drafts: '{}' is of kind {}, expected self, model or nested; measure other "
              "kinds with magicdec-bench",
              d.name, recipe::yaml_text(d.kind));
    if (d.kind == speculate::DraftKind::nested && !speculate)
      p.field(
          "drafts",
          "bench.drafts: '{}' is nested, which needs bench.speculate=true; set it, or leave the "
          "draft out",
          d.name);
    if (!d.tree.empty())
      p.field("drafts",
              "bench.drafts: '{}' proposes a tree, expected a linear draft; leave tree out, or "
              "measure it with sequoia-acceptance",
              d.name);
  }
  if (temperatures.empty())
    p.field("temperatures", "bench.temperatures: expected at least one, found none");
}

void DraftAcceptanceRecipe::check(recipe::Problems& p) const {
  if (run.context.value < 2)
    p.field("run.context", "run.context: expected prompts of at least 2 tokens, found {}",
            run.context.value);
  if (run.batch < 1) p.field("run.batch", "run.batch: expected at least 1 prompt, found 0");
  if (spec.gamma >= bench.new_tokens)
    p.field("spec.gamma",
            "spec.gamma: is {} tokens, but a prompt gets only {} new tokens; lower it, or raise "
            "bench.new_tokens",
            spec.gamma, bench.new_tokens);
  if (!model.state.empty())
    p.field("model.state", "model.state: is supported only by pig-generate; leave it out");
}

}  // namespace tandem::tools

template tandem::recipe::Field tandem::recipe::fields_of(tandem::tools::DraftAcceptanceRecipe&);
