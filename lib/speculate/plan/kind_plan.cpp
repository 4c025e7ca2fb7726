#include "speculate/plan/kind_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "speculate/draft/model_drafter.h"
#include "speculate/draft/nested_drafter.h"
#include "speculate/plan/measured_costs.h"
#include "speculate/tree/tree_table.h"

namespace tandem::speculate {
namespace {

// Shapes that are tried, at most.
constexpr int kMostAlone = 16;      // drafted tokens of one draft alone
constexpr int kMostInside = 4;      // of the small model within
constexpr int kMostTreeNodes = 17;  // of a tree, or a chain
constexpr int kMostLevels = 5;      // of a tree
constexpr int kContextSteps = 16;   // from a power of two to the next, at which rounds are timed
constexpr NestedShape kMostNested{.rounds = 8, .enough = 16};

TreeRoom any_room() { return TreeRoom::any(kMostTreeNodes); }

RoundTimesSpec rounds_to_time(const GenerateRecipe& recipe, const decode::SamplerSpec& sampler,
                              int batch, int context) {
  RoundTimesSpec timed = timed_rounds(recipe.spec.shape, sampler, batch, context);
  timed.largest_tree = kMostTreeNodes;
  // Closer to the texts than trees need: what all keys cost decides here.
  const int step = std::max(1, timed.contexts.front() / kContextSteps);
  timed.contexts = {context / step * step};
  return timed;
}

std::vector<int> up_to(int most) {
  std::vector<int> numbers(static_cast<size_t>(most));
  for (int i = 0; i < most; ++i) numbers[static_cast<size_t>(i)] = i + 1;
  return numbers;
}

/// Chains, or by a vector the best trees of each size.
Proposals proposals(const GenerateRecipe& recipe, int most_chain) {
  if (recipe.spec.shape.accept.empty())
    return chain_proposals(most_chain, recipe.spec.draft.alpha1.value);
  Proposals p{.acceptance = read_acceptance(recipe.spec.shape.accept)};
  const TreeTable table(p.acceptance, {.max_size = kMostTreeNodes, .max_levels = kMostLevels});
  for (int nodes = 2; nodes <= kMostTreeNodes; ++nodes)
    for (int levels = 2; levels <= std::min(nodes, kMostLevels); ++levels)
      if (table.expected(nodes, levels)) p.trees.push_back(table.tree(nodes, levels));
  return p;
}

std::string shape_text(const RoundChoice& c) {
  const auto tree = [&](const char* what) {
    const int most = *std::ranges::max_element(c.tree.n_children);
    return most > 1 ? fmt::format("{} tree {}x{}", what, c.tree.size(), c.tree.levels())
                    : fmt::format("{} linear {}", what, c.tree.levels() - 1);
  };
  switch (c.kind) {
    case RoundKind::plain:
      break;
    case RoundKind::small:
      return tree("inner");
    case RoundKind::retrieval:
      return tree("self");
    case RoundKind::nested:
      return fmt::format("{}, {} inner steps, gamma2 {}", tree("inner"), c.rounds, c.enough);
  }
  return "";
}

nlohmann::ordered_json choice_json(const RoundChoice& c) {
  nlohmann::ordered_json j = {{"tokens_per_round", c.tokens},
                              {"round_ms", c.round_ms},
                              {"ms_per_token", c.token_ms},
                              {"speedup", c.speedup}};
  if (c.kind != RoundKind::plain)
    j["tree"] = {{"nodes", c.tree.size()}, {"levels", c.tree.levels()}};
  if (c.kind == RoundKind::nested) j["rounds"] = c.rounds, j["gamma2"] = c.enough;
  return j;
}

}  // namespace

void size_for_kinds(ModelPair& pair, const decode::SequenceRoom& room, const GenerateRecipe&) {
  const int batch = room.sequences(), vocab = pair.target().config.vocab_size;
  const TreeRoom any = any_room();
  const TreeRoom inside = any.with(TreeRoom::of(chain_tree(1 + kMostInside)));
  const auto target = target_needs(any, batch, vocab)
                          .with(draft_needs(any, batch))
                          .with(nested_needs(inside, kMostNested, batch, vocab));
  const auto draft = draft_needs(any, batch).with(nested_draft_needs(inside, kMostNested, batch));
  const auto add = [&](MemoryPlan& plan) {
    plan_nested_rounds(inside, kMostNested, pair.target_spec(), pair.target().config, true, plan);
  };
  // The small model reads texts for rounds within and for rounds of its proposals alone.
  pair.size(room, target, draft, add, 2);
}

KindPlanner::KindPlanner(const ModelPair& pair, const GenerateRecipe& recipe,
                         const decode::SamplerSpec& sampler, int batch, int context)
    : timed_(rounds_to_time(recipe, sampler, batch, context)),
      outer_(pair, timed_, "outer"),
      inner_(pair, timed_, "inner"),
      recipe_(recipe),
      batch_(batch),
      context_(context) {}

KindPlan KindPlanner::plan(const decode::RunContext& cx, const ModelPair::Engines& engines) const {
  const auto times = [&](const KeptTimes& kept, Reader target, Reader draft) {
    if (const auto known = kept.read(cx)) return *known;
    const TimingTable table = measure_times(cx, target, draft, timed_);
    kept.write(cx, table);
    return table;
  };
  const TimingTable outer = times(outer_, *engines.target, engines.self());
  const TimingTable inner = times(inner_, engines.self(), engines.drafter());
  KindPlan plan;
  const Workload here{batch_, static_cast<double>(timed_.contexts.front())};
  plan.outlook = {
      .cost = {.outer = MeasuredCosts(outer, "times of outer rounds").at(here),
               .inner = MeasuredCosts(inner, "times of inner rounds").at(here)},
      .options = {.small = proposals(recipe_, kMostAlone),
                  .retrieval = chain_proposals(kMostAlone, recipe_.spec.draft.alpha2.value),
                  .inside = proposals(recipe_, kMostInside),
                  .enough = up_to(kMostNested.enough),
                  .rounds = up_to(kMostNested.rounds)},
      .alpha1 = recipe_.spec.draft.alpha1.value,
      .alpha2 = recipe_.spec.draft.alpha2.value};
  plan.choices = choose_rounds(plan.outlook.cost, plan.outlook.options);
  // From here on each kind has its best shape alone.
  NestedOptions& options = plan.outlook.options;
  options.small.trees = {plan.choices.of(RoundKind::small)->tree};
  options.retrieval.trees = {plan.choices.of(RoundKind::retrieval)->tree};
  const RoundChoice& nested = *plan.choices.of(RoundKind::nested);
  options.inside.trees = {nested.tree};
  options.enough = {nested.enough};
  options.rounds = {nested.rounds};
  return plan;
}

std::string KindPlan::text() const {
  const RoundKind best = choices.best().kind;
  std::string text =
      fmt::format("kinds    at acceptance {:.2f} in inner steps and {:.2f} in outer steps",
                  outlook.alpha1, outlook.alpha2);
  for (const std::optional<RoundChoice>& c : choices.best_of)
    if (c)
      text += fmt::format("\n         {} {:<10} {:.3f} ms per token, {:.2f}x plain decoding{}",
                          c->kind == best ? '*' : ' ',
                          enum_names(c->kind)[static_cast<size_t>(c->kind)], c->token_ms,
                          c->speedup, c->kind == RoundKind::plain ? "" : ", " + shape_text(*c));
  return text;
}

ChoosingRounds make_choosing_rounds(const GenerateRecipe& recipe, const KindPlan& plan,
                                    const ModelPair::Engines& engines, RoundOptions options) {
  const Reader target = *engines.target;
  const NestedOptions& shapes = plan.outlook.options;
  const auto drafter = [&](Reader draft, const Proposals& p) {
    return std::make_unique<ModelDrafter>(draft, target, p.trees.front());
  };
  options.verify = recipe.spec.verify;
  options.floor = recipe.spec.floors.rule();
  auto chooser = std::make_unique<ChoosingDrafter>(
      ChoosingDrafter::Drafters{
          .small = drafter(engines.drafter(), shapes.small),
          .retrieval = drafter(engines.self(), shapes.retrieval),
          .nested = std::make_unique<NestedDrafter>(
              engines.self(), drafter(engines.drafter(), shapes.inside),
              NestedShape{.rounds = shapes.rounds.front(), .enough = shapes.enough.front()},
              WithinOptions{.verify = recipe.spec.draft.inner_verify})},
      plan.outlook);
  ChoosingRounds made{.rounds = nullptr, .chooser = chooser.get()};
  made.rounds = drafted_rounds(target, std::move(chooser), std::move(options));
  return made;
}

nlohmann::ordered_json kinds_json(const ChoosingDrafter& chooser) {
  const RoundChoices choices = chooser.choices();
  nlohmann::ordered_json j = {{"alpha1", chooser.alpha1()}, {"alpha2", chooser.alpha2()}};
  for (const std::optional<RoundChoice>& c : choices.best_of) {
    if (!c) continue;
    const auto kind = static_cast<size_t>(c->kind);
    nlohmann::ordered_json& of_kind = j[std::string(enum_names(c->kind)[kind])] = choice_json(*c);
    of_kind["rounds_taken"] = chooser.rounds_by_kind()[kind];
  }
  return j;
}

}  // namespace tandem::speculate
