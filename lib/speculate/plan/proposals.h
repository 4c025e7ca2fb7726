#pragma once
#include <filesystem>
#include <memory>

#include "kernels/tree/grow_beams.h"
#include "recipe/auto_counts.h"
#include "speculate/draft/draft_kind.h"
#include "speculate/plan/model_pair.h"
#include "speculate/round/floor_keys.h"
#include "speculate/round/verify_choice.h"
#include "speculate/tree/acceptance.h"

namespace tandem::speculate {

/// Section `spec`.
struct SpecSection {
  DraftKind draft = DraftKind::none;
  recipe::AutoCounts gamma{{8}};
  int width = 1;
  WithinKind within = WithinKind::model;
  int gamma1 = 1, gamma2 = 6;
  std::optional<int> rounds;
  recipe::Fraction alpha1{0.35}, alpha2{0.9};
  int ngram = 3;
  VerifyChoice verify = VerifyChoice::automatic, verify_within = VerifyChoice::automatic;
  FloorKeys floors;
  bool force = false, fastest = false;

  template <class V>
  void fields(V& v) {
    v("draft", draft,
      "source of draft tokens: none (plain decoding), model (draft.path), ngram (prompt lookup), "
      "self (model.path under draft.cache), or nested (hierarchical speculation). In nested, "
      "draft2.path or prompt lookup "
      "drafts for model.path under draft.cache. auto = the fastest of self, nested, draft2.path "
      "and no draft at each step, by measured times and recent acceptance");
    v("within", within,
      "source of draft tokens in inner steps: model (draft2.path) or ngram (prompt lookup). Only "
      "with draft: nested or auto");
    v("gamma", gamma,
      "draft tokens per speculation step without a tree, an upper bound for ngram. auto = up to 16 "
      "(128 with model.offload and draft.sparse), or no draft, by measured times and acceptance. "
      "Sampled text then depends on timing");
    v("width", width, recipe::between(1, kMaxBeams).unit("beams"),
      "beams kept per level in beam search over the draft, ranked by softmax at score_temperature. "
      "The longest accepted beam is kept, 1 = a linear draft. Only with sampling.temperature: 0 "
      "and draft: model or self");
    v("gamma1", gamma1, recipe::between(1, 256).unit("tokens"),
      "draft tokens per inner step without a tree, an upper bound for ngram. Only with draft: "
      "nested or auto");
    v("gamma2", gamma2, recipe::between(1, 256).unit("tokens"),
      "tokens from inner steps at which no further inner step starts. Only with draft: nested or "
      "auto");
    v("rounds", rounds, recipe::between(1, 64),
      "maximum number of inner steps per speculation step, null = two thirds of gamma2. Only with "
      "draft: nested or auto");
    v("alpha1", alpha1, recipe::above(0).up_to(1),
      "initial estimate of the acceptance rate of draft2.path's tokens, only with draft: auto");
    v("alpha2", alpha2, recipe::above(0).up_to(1),
      "initial estimate of the acceptance rate of the target's tokens under draft.cache, only with "
      "draft: auto");
    v("ngram", ngram, recipe::between(1, 64).unit("tokens"), "longest n-gram to match");
    v("verify", verify,
      "acceptance rule. Lossless rules: match (plain sampling with the same seed), sequoia (node "
      "by node), block (linear drafts) and traversal (paths of a tree). Lossy rules: floor (likely "
      "enough), floor_or_argmax (also the most likely) and typical (floor scaled by entropy). auto "
      "= match for ngram, block for linear drafts, traversal for trees, or sequoia where those "
      "cost more than they gain");
    floors.fields(v);
    v("verify_within", verify_within,
      "acceptance rule of inner steps, lossless rules only. Only with draft: nested or auto");
    v("force", force,
      "speculation even if tree.accept or tree.replay predicts a slowdown, or the draft costs as "
      "much as the target");
    v("fastest", fastest,
      "trial of plain decoding, prompt lookup, self-drafts and draft.path on the prompt for some "
      "seconds. The fastest generates the text");
  }
  /// Of rounds within rounds.
  NestedShape nested() const {
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
      "token tree (sequoia-tree/1, or a map as JSON). auto = the fastest on this machine for "
      "accept or replay. Without both, acceptance is measured on up to 64 tokens, after a second "
      "prefill of the first prompt. Empty = a linear draft of spec.gamma");
    v("accept", accept, optional_input(),
      "acceptance vector for the choice of a tree, or for the prediction whether one pays. Empty = "
      "measured if path is auto, else unused");
    v("replay", replay, optional_input(),
      "recorded speculation steps (tree-rounds/1) in place of accept, for a tree search under "
      "spec.verify");
    v("timing", timing, optional_input(),
      "timing table for the choice of a tree (sequoia-timing/1), empty = measured once and kept in "
      "the cache folder");
    v("max_nodes", max_nodes, recipe::between(2, kv::kMaxTreeRows).unit("nodes"),
      "maximum number of tree nodes in a step, over all sequences, for an automatic tree");
    v("max_levels", max_levels, recipe::at_least(2),
      "maximum number of levels of an automatic tree, including the root's, null = no limit");
  }
  /// True if a run predicts the tokens a round of its tree.
  bool predicts() const { return path.automatic || !accept.empty() || !replay.empty(); }
  /// True if it first measures acceptance.
  bool measures_acceptance() const { return path.automatic && accept.empty() && replay.empty(); }
};

/// Section `accept`: what the trees are optimal for.
struct AcceptSection {
  std::filesystem::path path;
  std::optional<VectorLayout> layout;

  template <class V>
  void fields(V& v) {
    v("path", path, recipe::optional_input(),
      "acceptance vector (acceptance-vector/1) or a bare array");
    v("layout", layout,
      "layout of a bare array: padded begins with 0, residual ends with the share of no accepted "
      "child");
  }
};

/// Recipes of the kind `generate`.
struct GenerateRecipe {
  recipe::Model model;
  DraftSection draft;
  recipe::ServingRun run;
  recipe::Sampling sampling;
  recipe::Chat chat;
  recipe::Output output;
  recipe::Cache cache;
  DraftSection draft2;
  SpecSection spec;
  DraftTreeSection tree;

  template <class V>
  void fields(V& v) {
    v("model", model, "target model");
    v("draft", draft, "draft model");
    v("run", run, "device, threads, seed, sizes");
    v("sampling", sampling, "sampling and stop conditions");
    v("chat", chat, "chat template");
    v("output", output, "file of results");
    v("cache", cache, "KV cache and attention policy of the target, with or without drafts");
    v("draft2", draft2,
      "draft model of inner steps, only with spec.draft: nested or auto and spec.within: model");
    v("spec", spec, "drafting and verification");
    v("tree", tree, "shape of the token tree");
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
  void check_speculation(recipe::Problems& p) const;
  /// Refuses settings of drafts that are not their defaults.
  /// why      what the settings are of no use with
  static void refuse_drafts(const GenerateRecipe& own, const char* why, recipe::Problems& p);
};

/// Who proposes, as the recipe wants it.
Proposer proposer_of(const GenerateRecipe& recipe);

/// The tree that is proposed, the largest of them for an ngram; none where it is still to be
/// chosen.
/// errors   kind input: no such tree, or one of more nodes than a step may have; kind recipe: one
///          that spec.verify does not serve
std::optional<TokenTree> given_tree(const GenerateRecipe& recipe);

/// Nodes of a tree that is chosen here, at most.
int most_nodes(const DraftTreeSection& tree, int batch);

/// Room for the given tree, or for any that may be chosen.
/// batch     sequences of a step
/// measures  whether trees of any size that may be chosen are timed, a given one notwithstanding
TreeRoom room_of(const GenerateRecipe& recipe, const std::optional<TokenTree>& given, int batch,
                 bool measures);

/// Refuses a chain of spec.gamma that is longer than what the context holds after a prompt.
/// errors   kind recipe
void check_gamma(const GenerateRecipe& recipe, int64_t context, const decode::PromptSet& prompts);

/// Refuses a draft that reads as much as the target, and so cannot be faster.
/// errors   kind recipe
void refuse_full_draft(const GenerateRecipe& recipe, const ModelPair& pair);

/// What to change where speculation is slower than plain decoding.
std::string remedy_of_loss(const GenerateRecipe& recipe);

/// Gives both engines room for rounds with such trees, and plans them.
void size_for(ModelPair& pair, const decode::SequenceRoom& room, const TreeRoom& tree,
              const SpecSection& spec = {});

/// Rounds as the recipe wants them: with a model's trees, by prompt lookup, or within one another.
std::unique_ptr<Rounds> make_rounds(const GenerateRecipe& recipe, const ModelPair::Engines& engines,
                                    const TokenTree& tree, RoundOptions options = {},
                                    WithinOptions within = {});

}  // namespace tandem::speculate
