#include "tools/speculation/proposals.h"

#include <algorithm>

#include "recipe/fields_of.h"
#include "speculate/tree/tree_file.h"
#include "tools/prompts/prompt_flags.h"

namespace tandem::tools {

void SequoiaRecipe::check(recipe::Problems& p) const {
  if (spec.draft == DraftKind::model) {
    draft.require(p);
    if (tree.path.empty())
      p.field("tree.path", "tree.path: name a tree; sequoia-tree-search writes them");
    if (tree.path.automatic && tree.accept.empty())
      p.field("tree.accept",
              "tree.accept: name the vector to choose a tree by; sequoia-acceptance "
              "measures them");
  }
  refuse_states(model, output, p);
  if (output.top_logprobs > 0)
    p.field("output.top_logprobs", "output.top_logprobs: speculation reports no alternatives");
  if (sampling.max_tokens == 0)
    p.field("sampling.max_tokens",
            "sampling.max_tokens: nothing to speculate on; pig-generate reads prompts alone");
}

int most_nodes(const DraftTreeSection& tree, int batch) {
  return std::max(2, tree.max_nodes / batch);
}

speculate::TokenTree roomiest_tree(int nodes, Device device) {
  // A GPU keeps the logits of all nodes with children, the CPU those of a level.
  if (nodes < 3 || device.kind == Device::Kind::cuda) return speculate::chain_tree(nodes);
  // All nodes but the root and one leaf, which the level above is run for.
  std::vector<int> n_children(static_cast<size_t>(nodes), 0);
  n_children[0] = nodes - 2;
  n_children[1] = 1;
  return speculate::tree_of_children(n_children, "the largest tree");
}

speculate::TokenTree largest_tree(const SequoiaRecipe& recipe, int batch, Device device) {
  if (recipe.spec.draft == DraftKind::ngram) return speculate::chain_tree(recipe.spec.gamma + 1);
  if (recipe.tree.path.automatic) return roomiest_tree(most_nodes(recipe.tree, batch), device);
  speculate::TokenTree tree = speculate::read_tree(recipe.tree.path.path).tree;
  if (tree.size() > kv::kMaxTreeRows)
    throw input_error(recipe.tree.path.path.string(), "has {} nodes, at most {} are supported",
                      tree.size(), kv::kMaxTreeRows);
  return tree;
}

void size_for(ModelPair& pair, const SequenceRoom& room, const speculate::TokenTree& tree) {
  pair.size(room, speculate::target_needs(tree, room.sequences()),
            speculate::draft_needs(tree, room.sequences(), pair.device()), [&](MemoryPlan& plan) {
              speculate::plan_rounds(tree, pair.target_spec(), pair.target().config,
                                     pair.has_draft(), plan);
            });
}

std::unique_ptr<speculate::Rounds> make_rounds(const SpecSection& spec,
                                               const ModelPair::Engines& engines,
                                               const speculate::TokenTree& tree,
                                               speculate::RoundOptions options) {
  if (engines.draft)
    return speculate::model_rounds(*engines.target, *engines.draft, tree, std::move(options));
  return speculate::lookup_rounds(*engines.target, spec.ngram, spec.gamma, std::move(options));
}

}  // namespace tandem::tools

template tandem::recipe::Field tandem::recipe::fields_of(tandem::tools::SequoiaRecipe&);
