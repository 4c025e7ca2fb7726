#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "decode/generate.h"
#include "speculate/plan/kind_plan.h"
#include "speculate/plan/tree_plan.h"

namespace tandem::speculate {

/// The engines of a recipe of kind `generate`, and the decoder that its draft asks for.
class Generation {
 public:
  /// Reads headers of the models.
  /// recipe, cx  outlive this
  /// errors      as ModelPair
  Generation(const GenerateRecipe& recipe, const decode::RunContext& cx)
      : recipe_(recipe),
        cx_(cx),
        pair_(recipe.model, recipe.run, recipe.spec.engines(), cx, recipe.cache) {}

  ModelPair& pair() { return pair_; }
  const ModelPair& pair() const { return pair_; }
  bool speculates() const { return pair_.speculates(); }
  /// True if each step chooses the kind of draft.
  bool chooses_kind() const { return recipe_.spec.draft.kind == DraftKind::automatic; }
  /// True if rounds are timed before the first text.
  bool measures() const {
    return chooses_kind() || (chooses() && recipe_.spec.shape.timing.empty());
  }

  /// Reads the tree of the recipe, if it names one.
  /// errors   as given_tree and recorded_rounds
  void read_tree(const ops::SampleRule& sampling);
  /// The tree; none where it is still to be chosen.
  const std::optional<TokenTree>& tree() const { return tree_; }

  /// Sizes both engines and plans the run.
  /// batch    sequences of a step
  /// settle   sets what else the engine of plain decoding holds
  /// errors   as ModelPair::size
  void size(const decode::SequenceRoom& room, int batch,
            const std::function<void(decode::EngineSpec&)>& settle);
  /// Adds to the room what timing takes: forks of a text as long as the others.
  decode::SequenceRoom with_timing(decode::SequenceRoom room) const;

  /// Loads the models, the draft only if its trees pay as far as times are known, and settles how
  /// to speculate.
  /// prompt   for a shape that measures acceptance
  /// errors   as ModelPair::load, measure_times, plan_tree
  const ModelPair::Engines& load(const decode::GenerateSpec& how, std::span<const int32_t> prompt);
  const ModelPair::Engines& engines() const { return engines_; }
  /// Returns the tree of a loaded run and its prediction.
  const TreePlan& plan() const { return plan_; }
  /// True if predictions refuse to speculate.
  bool declines() const { return declines(plan_); }

  /// Tokens are found by rounds, or one a step.
  struct Way {
    std::unique_ptr<Rounds> rounds = {};
    std::unique_ptr<decode::Decoder> plain = {};
    const ChoosingDrafter* chooser = nullptr;  // with spec.draft auto

    decode::Decoder& decoder() const { return rounds ? *rounds : *plain; }
  };
  Way way(RoundOptions options) const;

 private:
  /// True if measured times decide how to speculate, if at all.
  bool chooses() const {
    return pair_.has_draft() && !chooses_kind() && recipe_.spec.shape.predicts();
  }
  bool declines(const TreePlan& plan) const { return !plan.pays() && !recipe_.spec.force; }

  const GenerateRecipe& recipe_;
  const decode::RunContext& cx_;
  ModelPair pair_;
  std::optional<TokenTree> tree_;
  std::optional<TreeRounds> recorded_;  // read from spec.shape.replay
  decode::SequenceRoom room_;           // without that of timing
  int batch_ = 1;
  std::optional<KindPlanner> kinds_;
  TreePlan plan_;
  ModelPair::Engines engines_;
};

}  // namespace tandem::speculate
