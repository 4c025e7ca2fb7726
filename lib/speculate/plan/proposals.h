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

/// Section `spec.draft.inner`: the draft of inner steps.
struct InnerDraft : DraftSection {
  WithinKind kind = WithinKind::model;

  template <class V>
  void fields(V& v) {
    v("kind", kind, "source of draft tokens in inner steps: model, or ngram (prompt lookup)");
    v("path", path, recipe::optional_input().of("model"),
      "draft model, with the tokenizer of model.path");
    v("cache", cache, recipe::of_kind("model"), "KV cache and attention policy of the draft");
    v("longest", longest, recipe::between(1, 64).unit("tokens").of("ngram"),
      "longest n-gram to match");
  }
};

/// Section `spec.draft`: what proposes tokens.
struct Draft : DraftSection {
  DraftKind kind = DraftKind::none;
  InnerDraft inner;
  int gamma1 = 1, gamma2 = 6;
  std::optional<int> inner_steps;
  recipe::Fraction alpha1{0.35}, alpha2{0.9};
  VerifyChoice inner_verify = VerifyChoice::automatic;

  Draft() { inner.key = "spec.draft.inner"; }
  template <class V>
  void fields(V& v) {
    using recipe::between;
    using recipe::of_kind;
    v("kind", kind,
      "source of draft tokens: none (plain decoding), model (path), ngram (prompt lookup), self "
      "(model.path under cache, or with some FFN neurons) or nested. In nested (hierarchical "
      "speculation), inner drafts for model.path under cache. auto = the fastest of self, nested, "
      "the inner model and no draft at each step, by measured times and recent acceptance");
    tagged_fields(v, "model|self|nested|auto");
    v("inner", inner, of_kind("nested|auto"), "draft of inner steps");
    v("gamma1", gamma1, between(1, 256).unit("tokens").of("nested|auto"),
      "draft tokens per inner step without a tree, an upper bound for ngram");
    v("gamma2", gamma2, between(1, 256).unit("tokens").of("nested|auto"),
      "tokens from inner steps at which no further inner step starts");
    v("inner_steps", inner_steps, between(1, 64).of("nested|auto"),
      "maximum number of inner steps per speculation step, null = two thirds of gamma2");
    v("alpha1", alpha1, recipe::above(0).up_to(1).of("nested|auto"),
      "initial estimate of the acceptance rate of the inner model's tokens");
    v("alpha2", alpha2, recipe::above(0).up_to(1).of("self|nested|auto"),
      "initial estimate of the acceptance rate of the target's tokens under cache");
    v("inner_verify", inner_verify, of_kind("nested|auto"),
      "acceptance rule of inner steps, lossless rules only");
  }
};

/// The shape of a step's proposals.
enum class ShapeKind : uint8_t { chain, tree, automatic, beams };
constexpr std::array<std::string_view, 4> enum_names(ShapeKind) {
  return {"chain", "tree", "auto", "beams"};
}

/// Section `spec.shape`: the shape of the proposals.
struct Shape {
  ShapeKind kind = ShapeKind::chain;
  recipe::AutoCounts gamma{{8}};
  int width = 4;
  std::filesystem::path path, accept, replay, timing;
  int max_nodes = 64;
  std::optional<int> max_levels;

  template <class V>
  void fields(V& v) {
    const auto file_of = [](std::string_view kinds) { return recipe::optional_input().of(kinds); };
    v("kind", kind,
      "shape of a step's draft tokens: `chain` (linear draft), tree (path) or beams (the likeliest "
      "linear drafts, greedy decoding only). With auto, it is the fastest tree on this machine for "
      "accept or replay. Without both, acceptance is measured on up to 64 tokens, after a second "
      "prefill of the first prompt");
    v("gamma", gamma, recipe::of_kind("chain|beams"),
      "draft tokens per speculation step, an upper bound for ngram. auto = up to 16 (128 with "
      "model.offload and sparse drafts), or no draft, by measured times and acceptance. Sampled "
      "text then depends on timing");
    v("width", width, recipe::between(2, kMaxBeams).unit("beams").of("beams"),
      "beams kept per level in beam search over the draft, ranked by softmax at score_temperature. "
      "The longest accepted beam is kept");
    v("path", path, file_of("tree"), "token tree (sequoia-tree/1, or a map as JSON)");
    v("accept", accept, file_of("chain|tree|auto"),
      "acceptance vector for the choice of a tree, or for the prediction whether one pays. Empty = "
      "measured if kind is auto, else unused");
    v("replay", replay, file_of("chain|tree|auto"),
      "recorded speculation steps (tree-rounds/1) in place of accept, for a tree search under "
      "spec.verify");
    v("timing", timing, file_of("chain|tree|auto"),
      "timing table for the choice of a tree (sequoia-timing/1), empty = measured once and kept in "
      "the cache folder");
    v("max_nodes", max_nodes,
      recipe::between(2, kv::kMaxTreeRows).unit("nodes").of("chain|tree|auto"),
      "maximum number of tree nodes in a step, over all sequences, for an automatic tree");
    v("max_levels", max_levels, recipe::at_least(2).of("chain|tree|auto"),
      "maximum number of levels of an automatic tree, including the root's, null = no limit");
  }
  bool is_auto() const { return kind == ShapeKind::automatic; }
  bool is_tree() const { return kind == ShapeKind::tree || is_auto(); }
  /// Beams of a round; 0: there are none.
  int beams() const { return kind == ShapeKind::beams ? width : 0; }
  /// True if a run predicts the tokens a round of its tree.
  bool predicts() const { return is_auto() || !accept.empty() || !replay.empty(); }
  /// True if it first measures acceptance.
  bool measures_acceptance() const { return is_auto() && accept.empty() && replay.empty(); }
};

/// Section `spec`.
struct SpecSection {
  Draft draft;
  Shape shape;
  VerifyChoice verify = VerifyChoice::automatic;
  FloorKeys floors;
  bool force = false, fastest = false;

  template <class V>
  void fields(V& v) {
    v("draft", draft, "source of draft tokens");
    v("shape", shape, "shape of the draft tokens");
    v("verify", verify,
      "acceptance rule. Lossless rules: match (plain sampling with the same seed), sequoia (node "
      "by node), block (linear drafts) and traversal (paths of a tree). Lossy rules: floor (likely "
      "enough), floor_or_argmax (also the most likely) and typical (floor scaled by entropy). auto "
      "= match for ngram, block for linear drafts, traversal for trees, or sequoia where those "
      "cost more than they gain");
    floors.fields(v);
    v("force", force,
      "speculation even if shape.accept or shape.replay predicts a slowdown, or the draft costs as "
      "much as the target");
    v("fastest", fastest,
      "trial of plain decoding, prompt lookup, self-drafts and a draft model on the prompt for "
      "some "
      "seconds. The fastest generates the text");
  }
  /// Returns what the engines must serve; it refers to this section.
  EngineUse engines() const;
  /// Of rounds within rounds.
  NestedShape nested() const {
    return {.rounds = draft.inner_steps.value_or((2 * draft.gamma2 + 2) / 3),
            .enough = draft.gamma2};
  }
  /// Whether there are rounds within rounds.
  bool nests() const {
    return draft.kind == DraftKind::nested || draft.kind == DraftKind::automatic;
  }
  /// Whether prompt lookup proposes in them.
  bool looks_up_within() const { return nests() && draft.inner.kind == WithinKind::ngram; }
  /// Drafted tokens of a chain, at most; of rounds within rounds those there.
  int most_gamma() const {
    if (nests()) return draft.gamma1;
    return shape.gamma.automatic() ? 16 : shape.gamma.values.front();
  }
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
  recipe::ServingRun run;
  recipe::Sampling sampling;
  recipe::Chat chat;
  recipe::Output output;
  recipe::Cache cache;
  SpecSection spec;

  template <class V>
  void fields(V& v) {
    v("model", model, "target model");
    v("run", run, "device, threads, seed, sizes");
    v("sampling", sampling, "sampling and stop conditions");
    v("chat", chat, "chat template");
    v("output", output, "file of results");
    v("cache", cache, "KV cache and attention policy of the target, with or without drafts");
    v("spec", spec, "drafting and verification");
  }
  void check(recipe::Problems& p) const;
  /// Whether each round chooses how long its chains are.
  bool chooses_gamma() const;
  /// Drafted tokens of a chain, at most. Checks that wait for the link want long ones.
  int most_gamma() const {
    constexpr int kWithOffload = 128;
    const bool waits = model.offload.any() && spec.draft.sparse.any();
    return waits && spec.shape.gamma.automatic() ? kWithOffload : spec.most_gamma();
  }

 private:
  void check_inner(recipe::Problems& p) const;
  void check_beams(recipe::Problems& p) const;
  void check_fastest(recipe::Problems& p) const;
  void check_speculation(recipe::Problems& p) const;
};

/// The tree that is proposed, the largest of them for an ngram; none where it is still to be
/// chosen.
/// errors   kind input: no such tree, or one of more nodes than a step may have; kind recipe: one
///          that spec.verify does not serve
std::optional<TokenTree> given_tree(const GenerateRecipe& recipe);

/// Nodes of a tree that is chosen here, at most.
int most_nodes(const Shape& shape, int batch);

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
