#include "tools/bench/bench_recipe.h"

#include <algorithm>

#include "kv/policy.h"
#include "recipe/scalar.h"
#include "tools/prompts/prompt_flags.h"

namespace tandem::tools {

int BenchRecipe::most_gamma() const {
  const int rows = kv::kMaxDraftedRows / run.batch;
  return std::max(1, std::min({spec.max_gamma, bench.n_new() - 1, rows - 1}));
}

std::vector<speculate::NamedDraft> BenchSection::budgeted() const {
  std::vector<speculate::NamedDraft> list = drafts;
  for (speculate::NamedDraft& draft : list)
    if (budget && draft.budget) draft.budget = *budget;
  return list;
}

void BenchSection::check(recipe::Problems& p) const {
  bench::ModelBench::check(p);
  if (phases.empty() && drafts.empty())
    p.field("drafts", "bench.drafts: expected drafts, or bench.phases, found neither");
  if (random_kv && !has(bench::ModelPhase::decode) && drafts.empty())
    p.field("random_kv",
            "bench.random_kv: needs the phase decode, which bench.phases lacks: add it");
  if (predict == PredictMode::only && !phases.empty())
    p.field("phases",
            "bench.phases: {} cannot be calculated; set bench.phases=[], or leave "
            "bench.predict out",
            bench::phase_name(phases.front()));
  if (drafts.empty()) return;
  if (new_tokens.value < 2)
    p.field("new_tokens", "bench.new_tokens: expected at least 2 with drafts, found {}",
            new_tokens.value);
  if (predict == PredictMode::only && !hardware.complete())
    p.field("hardware",
            "bench.hardware: expected a GPU (h200, a100-80, ...), or read_gbps and bf16_tflops");
  speculate::check_drafts(budgeted(), budget ? "budget" : "", p);
  for (const speculate::NamedDraft& d : drafts)
    if (predict == PredictMode::only && d.kind == speculate::DraftKind::nested)
      p.field("drafts",
              "bench.drafts: '{}' is nested, which bench.predict=only does not support; leave one "
              "of them out",
              d.name);
}

void BenchRecipe::check(recipe::Problems& p) const {
  if (!bench.drafts.empty()) check_drafts(p);
  recipe::refuse_states(model, {}, p);
}

void BenchRecipe::check_drafts(recipe::Problems& p) const {
  refuse_model_sampling(sampling, p);
  if (run.context.value < 1)
    p.field("run.context", "run.context: expected at least 1 token, found 0");
  if (run.batch < 1) p.field("run.batch", "run.batch: expected at least 1 sequence, found 0");
  if (bench.predict != PredictMode::only)
    check_measurement(p);
  else if (!kv::needs_of(cache).reads_all)
    p.field("cache.kind",
            "cache.kind: is {}, but bench.predict=only needs full; leave it full, or leave "
            "bench.predict out to measure",
            recipe::yaml_text(cache.kind));
  check_trees(p);
}

void BenchRecipe::check_trees(recipe::Problems& p) const {
  const auto of_vector = [](const speculate::NamedDraft& d) { return d.tree.automatic; };
  const auto draft = std::ranges::find_if(bench.drafts, of_vector);
  if (draft == bench.drafts.end()) return;
  if (accept.path.empty())
    p.field("accept.path",
            "accept.path: expected an acceptance vector to choose the trees of '{}' by",
            draft->name);
  if (tree.sizes.empty()) p.field("tree.sizes", "tree.sizes: expected at least one, found none");
  if (tree.levels.empty()) p.field("tree.levels", "tree.levels: expected at least one, found none");
}

void BenchRecipe::check_measurement(recipe::Problems& p) const {
  speculate::check_rule_within("spec.inner_verify", spec.inner_verify, p);
  for (const speculate::NamedDraft& d : bench.drafts)
    if (speculate::weighs_draws(spec.inner_verify) && d.kind == speculate::DraftKind::nested &&
        std::ranges::any_of(bench.drafts, [&](const speculate::NamedDraft& small) {
          return small.name == d.small && small.kind == speculate::DraftKind::ngram;
        }))
      p.field("spec.inner_verify",
              "spec.inner_verify: {} needs sampled draft tokens, but '{}' is prompt lookup; set "
              "match or auto",
              recipe::yaml_text(spec.inner_verify), d.small);
  for (const int gamma : spec.gamma.values)
    if (gamma >= bench.n_new())
      p.field("spec.gamma",
              "spec.gamma: is {} tokens, but a sequence gets only {} new tokens; lower it, or "
              "raise bench.new_tokens",
              gamma, bench.n_new());
  if (run.context.value < 2)
    p.field("run.context", "run.context: expected prompts of at least 2 tokens, found {}",
            run.context.value);
}

}  // namespace tandem::tools
