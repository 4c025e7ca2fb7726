#include "cli/proposals.h"

#include <algorithm>

#include "cli/generate_flags.h"
#include "spec/lookup_drafter.h"
#include "spec/tree_file.h"

namespace tandem::cli {

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

spec::TokenTree roomiest_tree(int nodes) {
  if (nodes < 3) return spec::chain_tree(nodes);
  // All nodes but the root and one leaf, which the level above is run for.
  std::vector<int> n_children(static_cast<size_t>(nodes), 0);
  n_children[0] = nodes - 2;
  n_children[1] = 1;
  return spec::tree_of_children(n_children, "the largest tree");
}

spec::TokenTree largest_tree(const SequoiaRecipe& recipe, int batch) {
  if (recipe.spec.draft == DraftKind::ngram) return spec::chain_tree(recipe.spec.gamma + 1);
  if (recipe.tree.path.automatic) return roomiest_tree(most_nodes(recipe.tree, batch));
  spec::TokenTree tree = spec::read_tree(recipe.tree.path.path).tree;
  if (tree.size() > kv::kMaxTreeRows)
    throw input_error(recipe.tree.path.path.string(), "has {} nodes, at most {} are supported",
                      tree.size(), kv::kMaxTreeRows);
  return tree;
}

void size_for(ModelPair& pair, const TextRoom& texts, const spec::TokenTree& tree) {
  const int nodes = tree.size(), rows = texts.sequences() * nodes;
  pair.size(texts, {.rows = rows, .logit_rows = rows, .tokens = nodes},
            spec::ModelDrafter::needs(tree, texts.sequences()));
}

MemoryPlan speculation_plan(const ModelPair& pair, const spec::TokenTree& tree) {
  MemoryPlan plan = pair.plan();
  if (!pair.has_draft()) return plan;
  // Logits on the host: those that children were drawn from, and copies of a GPU's.
  const auto row = static_cast<size_t>(pair.target().config.vocab_size) * sizeof(float);
  plan.add("speculation/draft logits", static_cast<size_t>(tree.size()) *
                                           static_cast<size_t>(pair.target_spec().max_seqs) * row);
  if (pair.device().kind == Device::Kind::cuda)
    plan.add(
        "speculation/logits from the GPU",
        static_cast<size_t>(pair.target_spec().max_logit_rows + pair.draft_spec().max_logit_rows) *
            row);
  return plan;
}

std::unique_ptr<spec::Drafter> make_drafter(const SpecSection& spec,
                                            const ModelPair::Engines& engines,
                                            const spec::TokenTree& tree) {
  if (engines.draft)
    return std::make_unique<spec::ModelDrafter>(*engines.draft, tree,
                                                engines.target->config().vocab_size);
  return std::make_unique<spec::LookupDrafter>(spec.ngram, spec.gamma);
}

}  // namespace tandem::cli
