#pragma once
#include <filesystem>
#include <memory>

#include "kernels/tree/grow_beams.h"
#include "recipe/auto_counts.h"
#include "speculate/round/floor_keys.h"
#include "speculate/round/verify_choice.h"
#include "tools/speculation/draft_kind.h"
#include "tools/speculation/model_pair.h"

namespace tandem::tools {

/// Section `spec`.
struct SpecSection {
  DraftKind draft = DraftKind::model;
  recipe::AutoCounts gamma{{8}};
  int width = 1;
  WithinKind within = WithinKind::model;
  int gamma1 = 1, gamma2 = 6;
  std::optional<int> rounds;
  recipe::Fraction alpha1{0.35}, alpha2{0.9};
  int ngram = 3;
  speculate::VerifyChoice verify = speculate::VerifyChoice::automatic,
                          verify_within = speculate::VerifyChoice::automatic;
  speculate::FloorKeys floors;
  bool force = false, fastest = false;

  template <class V>
  void fields(V& v) {
    v("draft", draft,
      "model: draft.path; self: model.path itself, which reads as draft.cache says; nested: "
      "draft2.path or an ngram, in rounds within a round that model.path verifies as draft.cache "
      "says; auto: of self, nested, draft2.path alone and nothing each round the fastest, by times "
      "that are measured and acceptance of late; ngram: what followed the last words before");
    v("within", within,
      "nested: what proposes in rounds within, model: draft2.path, or ngram: what followed the "
      "last words before");
    v("gamma", gamma,
      "drafted tokens of a chain where tree.path is empty; of an ngram's, at most. auto = each "
      "round chooses up to 16 (128 with model.offload and draft.sparse) by times and acceptance so "
      "far, a plain step where nothing is faster; drawn texts then depend on times");
    v("width", width, recipe::between(1, kMaxBeams).unit("beams"),
      "model, self: of a round, each of spec.gamma tokens. Of the likeliest tokens after every "
      "beam "
      "those of the likeliest texts go on, in the softmax over score_temperature; the longest that "
      "passes is kept. 1 = a chain. Beams are not drawn: at sampling.temperature 0 alone");
    v("gamma1", gamma1, recipe::between(1, 256).unit("tokens"),
      "nested: drafted tokens of a round within, where tree.path is empty; of an ngram at most");
    v("gamma2", gamma2, recipe::between(1, 256).unit("tokens"),
      "nested: tokens of a chain, with which no other round within lengthens it");
    v("rounds", rounds, recipe::between(1, 64),
      "nested: rounds within a round; null = two thirds of gamma2");
    v("alpha1", alpha1, recipe::above(0).up_to(1),
      "auto: acceptance of draft2.path's tokens, to begin with");
    v("alpha2", alpha2, recipe::above(0).up_to(1),
      "auto: acceptance of tokens of the target as draft.cache has it, to begin with");
    v("ngram", ngram, recipe::between(1, 64).unit("tokens"), "that must agree for one, at most");
    v("verify", verify,
      "which drafted tokens are accepted. sequoia: node by node, block: of a chain, traversal: of "
      "a tree by whole paths; match: those that plain sampling gives. auto: match for an ngram, "
      "block for a chain, traversal for a tree; sequoia where these cost more than they win. "
      "floor: lossy, those that are likely enough; floor_or_argmax: or the likeliest; typical: "
      "likely "
      "enough for how sure the target is");
    floors.fields(v);
    v("verify_within", verify_within, "nested: the same for the rounds within, none that is lossy");
    v("force", force,
      "speculate although tree.accept or tree.replay and the times predict a loss, or the draft "
      "reads as much as the target");
    v("fastest", fastest,
      "plain decoding, prompt lookup, self-drafts and draft.path are tried on the prompt for some "
      "seconds, and the fastest writes the text");
  }
  /// Of rounds within rounds.
  speculate::NestedShape nested() const {
    return {.rounds = rounds.value_or((2 * gamma2 + 2) / 3), .enough = gamma2};
  }
  /// Whether there are rounds within rounds.
  bool nests() const { return draft == DraftKind::nested || draft == DraftKind::automatic; }
  /// Beams of a round; 0: there are none.
  int beams() const { return width > 1 ? width : 0; }
  /// Whether prompt lookup proposes in them.
  bool looks_up_within() const { return nests() && within == WithinKind::ngram; }
  /// Drafted tokens of a chain, at most; of rounds within rounds those there.
  int most_gamma() const {
    if (nests()) return gamma1;
    return gamma.automatic() ? 16 : gamma.values.front();
  }
};

/// Section `tree`: the shape of the proposals.
struct DraftTreeSection {
  recipe::AutoPath path;
  std::filesystem::path accept, replay, timing;
  int max_nodes = 64;
  std::optional<int> max_levels;

  template <class V>
  void fields(V& v) {
    using recipe::optional_input;
    v("path", path, optional_input(),
      "tree of draft tokens (sequoia-tree/1, or a map as JSON); auto = the best one here for "
      "accept or replay; without both, acceptance is measured on up to 64 tokens after the first "
      "prompt, which is read once more; empty = a chain of spec.gamma");
    v("accept", accept, optional_input(),
      "acceptance vector: what a tree is chosen by, or whether one pays; empty = measured if "
      "path is auto, else not used");
    v("replay", replay, optional_input(),
      "recorded rounds (tree-rounds/1) in place of accept: the tree is searched for spec.verify");
    v("timing", timing, optional_input(),
      "timing table for that (sequoia-timing/1); empty = measured once and kept in the cache "
      "folder");
    v("max_nodes", max_nodes, recipe::between(2, kv::kMaxTreeRows).unit("nodes"),
      "of a tree chosen here, all sequences of a step together");
    v("max_levels", max_levels, recipe::at_least(2), "of it, the root's counts; null = any number");
  }
  /// True if a run predicts the tokens a round of its tree.
  bool predicts() const { return path.automatic || !accept.empty() || !replay.empty(); }
  /// True if it first measures acceptance.
  bool measures_acceptance() const { return path.automatic && accept.empty() && replay.empty(); }
};

/// What tools read that speculate: the kind `generate` of recipes.
struct SequoiaRecipe : PairRecipe {
  recipe::Cache cache;
  DraftSection draft2;
  SpecSection spec;
  DraftTreeSection tree;

  template <class V>
  void fields(V& v) {
    PairRecipe::fields(v);
    v("cache", cache, "what the target reads of the text; its text without drafts is the same");
    v("draft2", draft2,
      "spec.draft nested: the small model that proposes in rounds within, unless an ngram does");
    v("spec", spec, "what proposes tokens");
    v("tree", tree, "the shape of the proposals");
  }
  void check(recipe::Problems& p) const;
  /// Whether each round chooses how long its chains are.
  bool chooses_gamma() const {
    return spec.draft != DraftKind::ngram && spec.draft != DraftKind::nested && tree.path.empty() &&
           spec.gamma.automatic();
  }
  /// Drafted tokens of a chain, at most. Checks that wait for the link want long ones.
  int most_gamma() const {
    constexpr int kWithOffload = 128;
    const bool waits = model.offload.any() && draft.sparse.any() && spec.draft == DraftKind::self;
    return waits && spec.gamma.automatic() ? kWithOffload : spec.most_gamma();
  }

 private:
  void check_within(recipe::Problems& p) const;
  void check_beams(recipe::Problems& p) const;
  void check_fastest(recipe::Problems& p) const;
};

/// Who proposes, as the recipe wants it.
Proposer proposer_of(const SpecSection& spec);

/// The tree that is proposed, the largest of them for an ngram; none where it is still to be
/// chosen.
/// errors   kind input: no such tree, or one of more nodes than a step may have; kind recipe: one
///          that spec.verify does not serve
std::optional<speculate::TokenTree> given_tree(const SequoiaRecipe& recipe);

/// Nodes of a tree that is chosen here, at most.
int most_nodes(const DraftTreeSection& tree, int batch);

/// Room for the given tree, or for any that may be chosen.
/// batch     sequences of a step
/// measures  whether trees of any size that may be chosen are timed, a given one notwithstanding
speculate::TreeRoom room_of(const SequoiaRecipe& recipe,
                            const std::optional<speculate::TokenTree>& given, int batch,
                            bool measures);

/// Refuses a chain of spec.gamma that is longer than what the context holds after a prompt.
/// errors   kind recipe
void check_gamma(const SequoiaRecipe& recipe, int64_t context, const decode::PromptSet& prompts);

/// Refuses a draft that reads as much as the target, and so cannot be faster.
/// errors   kind recipe
void refuse_full_draft(const SequoiaRecipe& recipe, const ModelPair& pair);

/// What to change where speculation is slower than plain decoding.
std::string remedy_of_loss(const SequoiaRecipe& recipe);

/// Gives both engines room for rounds with such trees, and plans them.
void size_for(ModelPair& pair, const SequenceRoom& room, const speculate::TreeRoom& tree,
              const SpecSection& spec = {});

/// Rounds as the recipe wants them: with a model's trees, by prompt lookup, or within one another.
std::unique_ptr<speculate::Rounds> make_rounds(const SequoiaRecipe& recipe,
                                               const ModelPair::Engines& engines,
                                               const speculate::TokenTree& tree,
                                               speculate::RoundOptions options = {});

}  // namespace tandem::tools
