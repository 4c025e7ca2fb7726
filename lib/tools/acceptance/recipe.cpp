#include "tools/acceptance/recipe.h"

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
  if (drafts.empty()) return;
  speculate::check_drafts(all_drafts(), budgets.empty() ? "" : "budgets", p);
  for (const speculate::NamedDraft& d : drafts) {
    const bool is_nested = d.kind == speculate::DraftKind::nested;
    if (!d.proposes_by_model() && !is_nested)
      p.field("drafts",
              "bench.drafts: '{}' is of kind {}, expected self, model or nested; measure other "
              "kinds with magicdec-bench",
              d.name, recipe::yaml_text(d.kind));
    if (is_nested && !(rates && speculate))
      p.field("drafts",
              "bench.drafts: '{}' is nested, which needs bench.speculate=true and "
              "bench.rates=true; set both, or leave the draft out",
              d.name);
    if (!d.tree.empty())
      p.field("drafts",
              "bench.drafts: '{}' proposes a tree, expected a linear draft; leave tree out, or "
              "measure it with accept.tree",
              d.name);
  }
}

std::vector<speculate::NamedDraft> AcceptanceRecipe::drafts() const {
  if (!bench.drafts.empty()) return bench.all_drafts();
  if (spec.draft.kind == speculate::DraftKind::model && spec.draft.path.value.empty()) return {};
  speculate::NamedDraft draft;
  static_cast<speculate::DraftSection&>(draft) = spec.draft;
  draft.kind = spec.draft.kind;
  draft.name = "draft";
  return {draft};
}

void AcceptanceRecipe::check_vectors(recipe::Problems& p) const {
  if (accept.width == 0) {
    if (!bench.rates || !accept.tree.empty() || accept.depths > 1)
      p.field("accept.width",
              "accept.width: expected at least 1 child, found 0; set it, or measure only rates "
              "(bench.rates=true), without accept.tree and accept.depths");
    return;
  }
  for (const speculate::NamedDraft& d : drafts()) {
    if (d.kind == speculate::DraftKind::nested)
      p.field("accept.width",
              "accept.width: '{}' is nested and proposes linear drafts, which have no acceptance "
              "vector; "
              "set accept.width=0, or leave the draft out",
              d.name);
    if (d.shares_cache() &&
        (accept.depths > 1 || (!accept.tree.empty() && !is_by_sequences(accept.rule))))
      p.field("accept",
              "accept: '{}' reads the target's KV cache, which depths and tree do not support; "
              "leave both out, or set accept.rule=traversal with tree",
              d.name);
  }
  if (!accept.tree.empty() && accept.depths > 1)
    p.field("accept.depths",
            "accept.depths: cannot be combined with accept.tree, which has its own depth; leave "
            "one out");
  if (accept.tree.empty() && !accept.record.empty())
    p.field("accept.record",
            "accept.record: needs accept.tree, whose speculation steps it records; set it");
  if (!accept.record.empty() && drafts().size() * temperatures().size() != 1)
    p.field("accept.record",
            "accept.record: expected one draft at one temperature, found {} and {}; list one of "
            "each",
            drafts().size(), temperatures().size());
  if (accept.tree.empty() && is_by_sequences(accept.rule))
    p.field("accept.rule",
            "accept.rule: block and traversal need accept.tree, whose paths they accept; set it");
}

void AcceptanceRecipe::check(recipe::Problems& p) const {
  if (bench.drafts.empty()) spec.require_draft(p);
  check_vectors(p);
  recipe::refuse_states(model, output.state, p);
  if (output.top_logprobs > 0)
    p.field("output.top_logprobs",
            "output.top_logprobs: is not supported, since results are acceptance rates; leave it "
            "out");
  if (has_given_prompts() && sampling.max_tokens < 2)
    p.field("sampling.max_tokens", "sampling.max_tokens: expected at least 2 tokens of the target");
  if (sampling.temperature && !bench.temperatures.empty())
    p.field(
        "sampling.temperature",
        "sampling.temperature: cannot be combined with bench.temperatures; leave it out, or set "
        "bench.temperatures=[]");
  if (!has_given_prompts() && run.context.value < 2)
    p.field("run.context", "run.context: expected prompts of at least 2 tokens, found {}",
            run.context.value);
  if (!has_given_prompts() && run.batch < 1)
    p.field("run.batch", "run.batch: expected at least 1 prompt, found 0");
  if (bench.rates && spec.gamma >= n_new())
    p.field("spec.gamma",
            "spec.gamma: is {} tokens, but a prompt gets only {} new tokens; lower it, or raise {}",
            spec.gamma, n_new(), has_given_prompts() ? "sampling.max_tokens" : "bench.new_tokens");
}

}  // namespace tandem::tools

template tandem::recipe::Field tandem::recipe::fields_of(tandem::tools::AcceptanceRecipe&);
