#include "bench/speculation/ways.h"

#include <algorithm>
#include <set>

#include "speculate/plan/nested_tokens.h"
#include "speculate/tree/tree_file.h"
#include "speculate/tree/tree_table.h"

namespace tandem::bench {

NestedWay NestedWay::of(const speculate::NamedDraft& nested,
                        const std::vector<speculate::NamedDraft>& drafts) {
  const auto named = [&](const std::string& name) {
    return *std::ranges::find(drafts, name, &speculate::NamedDraft::name);
  };
  return {named(nested.self), named(nested.small)};
}

std::string Way::shape() const {
  if (chooses) return "gamma auto";
  if (nested) {
    const speculate::TokenTree& within = nested->tree;
    const std::string proposals = draft.tree.empty()
                                      ? fmt::format("gamma1 {}", within.levels() - 1)
                                      : fmt::format("tree {}x{}", within.size(), within.levels());
    return fmt::format("{} gamma2 {} rounds {}", proposals, nested->shape.enough,
                       nested->shape.rounds);
  }
  return is_chain() ? fmt::format("gamma {}", gamma())
                    : fmt::format("tree {}x{}", tree.size(), tree.levels());
}

std::string Way::name() const {
  return is_plain() ? draft.name : fmt::format("{} {}", draft.name, shape());
}

double Way::expected_tokens() const {
  if (!nested) return speculate::expected_tokens(tree, *acceptance);
  const std::vector<speculate::TentativeChain> growth =
      speculate::grow_chains(speculate::round_tokens(nested->tree, *nested->acceptance),
                             nested->shape.enough, nested->shape.rounds);
  return speculate::nested_tokens(growth.back(), speculate::tokens_by_length(gamma(), *acceptance));
}

std::vector<speculate::TokenTree> trees_of(const speculate::NamedDraft& draft, const TreeGrid& grid,
                                           const speculate::AcceptSection& accept,
                                           const std::function<void(std::string)>& note) {
  std::vector<speculate::TokenTree> trees;
  if (!draft.tree.automatic) return {speculate::read_tree(draft.tree.path).tree};
  speculate::AcceptanceVector vector = speculate::read_acceptance(accept.path, accept.layout);
  if (grid.max_branch) vector = vector.first_children(*grid.max_branch);
  const auto [fewest, most] = std::ranges::minmax(grid.levels);
  const speculate::TreeTable table(
      vector, {.max_size = std::ranges::max(grid.sizes), .min_levels = fewest, .max_levels = most});
  std::set<std::pair<int, int>> shapes;  // more levels may be of no use
  for (const int size : grid.sizes)
    for (const int levels : grid.levels) {
      if (!table.expected(size, levels)) {
        note(fmt::format("this acceptance vector has no tree of {} nodes on at most {} levels",
                         size, levels));
        continue;
      }
      speculate::TokenTree tree = table.tree(size, levels);
      if (shapes.emplace(tree.size(), tree.levels()).second) trees.push_back(std::move(tree));
    }
  return trees;
}

std::optional<speculate::AcceptanceVector> known_acceptance(const speculate::NamedDraft& draft,
                                                            const speculate::AcceptSection& accept,
                                                            double context, bool simulates) {
  if (!draft.tree.empty() && !accept.path.empty())
    return speculate::read_acceptance(accept.path, accept.layout);
  if (!simulates) return std::nullopt;
  if (!speculate::drafter_kind(draft.kind).draws)
    throw recipe_error("bench.simulate",
                       "'{}' is prompt lookup, which needs a real text, but the text is simulated",
                       draft.name)
        .hint("leave the draft out, or measure a model with weights");
  speculate::AcceptanceVector vector;
  vector.rows = {{speculate::assumed_alpha(draft, context).value}};
  vector.method = "simulated";
  return vector;
}

}  // namespace tandem::bench
