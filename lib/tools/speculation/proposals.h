#pragma once
#include <array>
#include <filesystem>
#include <memory>
#include <string_view>

#include "tools/speculation/model_pair.h"

namespace tandem::tools {

/// What proposes tokens.
enum class DraftKind : uint8_t { model, ngram };
constexpr std::array<std::string_view, 2> enum_names(DraftKind) { return {"model", "ngram"}; }

/// Section `spec`.
struct SpecSection {
  DraftKind draft = DraftKind::model;
  int gamma = 8, ngram = 3;
  bool force = false;

  template <class V>
  void fields(V& v) {
    v("draft", draft,
      "model: draft.path grows tree.path; ngram: what followed the last words before");
    v("gamma", gamma, recipe::between(1, 256).unit("tokens"), "of an ngram's proposal, at most");
    v("ngram", ngram, recipe::between(1, 64).unit("tokens"), "that must agree for one, at most");
    v("force", force, "speculate although tree.accept and the times predict a loss");
  }
};

/// Section `tree`: the shape of the proposals.
struct DraftTreeSection {
  recipe::AutoPath path;
  std::filesystem::path accept, timing;
  int max_nodes = 64;
  std::optional<int> max_levels;

  template <class V>
  void fields(V& v) {
    using recipe::optional_input;
    v("path", path, optional_input(),
      "tree of draft tokens (sequoia-tree/1, or a map as JSON); auto = the best one here for "
      "accept");
    v("accept", accept, optional_input(),
      "acceptance vector: what a tree is chosen by, or whether one pays; empty = not asked");
    v("timing", timing, optional_input(),
      "timing table for that (sequoia-timing/1); empty = measured once and kept in the cache "
      "folder");
    v("max_nodes", max_nodes, recipe::between(2, kv::kMaxTreeRows).unit("nodes"),
      "of a tree chosen here, all sequences of a step together");
    v("max_levels", max_levels, recipe::at_least(2), "of it, the root's counts; null = any number");
  }
};

/// What tools read that speculate: the kind `generate` of recipes.
struct SequoiaRecipe : PairRecipe {
  SpecSection spec;
  DraftTreeSection tree;

  template <class V>
  void fields(V& v) {
    PairRecipe::fields(v);
    v("spec", spec, "what proposes tokens");
    v("tree", tree, "the shape of the proposals");
  }
  void check(recipe::Problems& p) const;
};

/// The draft's path of a pair; empty where no model proposes.
inline std::string draft_path(const SequoiaRecipe& recipe) {
  return recipe.spec.draft == DraftKind::model ? recipe.draft.path.value : std::string();
}

/// The tree that is proposed, or where it is still to be chosen one that needs as much room as any.
/// batch    sequences of a step
/// errors   kind input: no such tree, or one of more nodes than a step may have
speculate::TokenTree largest_tree(const SequoiaRecipe& recipe, int batch, Device device);

/// A tree that needs as much room as any of its size.
speculate::TokenTree roomiest_tree(int nodes, Device device);

/// Nodes of a tree that is chosen here, at most.
int most_nodes(const DraftTreeSection& tree, int batch);

/// Gives both engines room for rounds with this tree, and plans them.
void size_for(ModelPair& pair, const SequenceRoom& room, const speculate::TokenTree& tree);

/// Rounds as the recipe wants them: with the draft's trees, or by prompt lookup where no draft was
/// loaded.
std::unique_ptr<speculate::Rounds> make_rounds(const SpecSection& spec,
                                               const ModelPair::Engines& engines,
                                               const speculate::TokenTree& tree,
                                               speculate::RoundOptions options = {});

}  // namespace tandem::tools
