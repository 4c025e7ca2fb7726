#include "tools/sequoia_tree_search.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/plan_text.h"
#include "decode/suggested_sampling.h"
#include "speculate/plan/proposals.h"
#include "speculate/plan/tree_plan.h"
#include "tools/prompts/prompt_flags.h"

namespace tandem::tools {

int measure_timing(cli::Context& cx, const TreeSearchRecipe& recipe) {
  speculate::ModelPair pair(recipe.model, recipe.run, {.model = &recipe.spec.draft}, cx);
  speculate::RoundTimesSpec spec;
  constexpr int kLargest = 128;
  spec.largest_tree = recipe.tree.sizes.empty() ? kLargest : std::ranges::max(recipe.tree.sizes);
  if (spec.largest_tree > kv::kMaxTreeRows)
    throw recipe_error("tree.sizes", "is {}, but at most {} nodes a step are supported",
                       spec.largest_tree, kv::kMaxTreeRows);
  spec.batch = std::max(1, recipe.run.batch);
  for (const recipe::TokenCount& n : recipe.timing.contexts)
    spec.contexts.push_back(static_cast<int>(n));
  std::ranges::sort(spec.contexts);
  spec.contexts.erase(std::unique(spec.contexts.begin(), spec.contexts.end()), spec.contexts.end());
  const int longest = spec.contexts.back();
  if (longest > pair.context())
    throw recipe_error("timing.contexts",
                       "is {}, but the context of both models is at most {} tokens", longest,
                       pair.context());
  const decode::SequenceRoom room{
      .batch = spec.batch,
      .prefix = true,
      .longest = longest + speculate::kTimingTokens,
      .total = longest + int64_t{spec.batch + 1} * speculate::kTimingTokens};
  speculate::size_for(pair, room, speculate::TreeRoom::any(spec.largest_tree));
  spec.sampler =
      decode::generate_spec(recipe.sampling, recipe.run.seed, 0, pair.target().config, 0).sampler;
  if (cx.dry_run()) {
    const std::vector<int> sizes = speculate::timed_sizes(spec.largest_tree);
    return cli::print_plan(cx, pair,
                           fmt::format("timed    trees of {} nodes, contexts of {} tokens\n",
                                       fmt::join(sizes, ", "), fmt::join(spec.contexts, ", ")),
                           {{"timed", {{"sizes", sizes}, {"contexts", spec.contexts}}}});
  }
  cli::ResultFile file(recipe.output.path, cx.file_mode(), cx.out);
  const nlohmann::ordered_json about = speculate::times_context(pair, spec);
  const speculate::ModelPair::Engines engines = pair.load(cx);
  file.write(speculate::timing_json(
      speculate::measure_times(cx, *engines.target, engines.drafter(), spec), about));
  file.commit();
  cx.out.flush();
  return 0;
}

}  // namespace tandem::tools
