#pragma once
#include "base/clock.h"
#include "cli/context.h"
#include "speculate/plan/tree_plan.h"
#include "tools/speculation/fastest.h"

namespace tandem::tools {

/// A run of sequoia-generate: text of one model, several tokens a step with the help of a small
/// one.
class SequoiaGenerate {
 public:
  using Recipe = speculate::SequoiaRecipe;

  /// Reads headers of both models, prompts and tree, and sizes the run.
  /// errors   kind usage: no prompt; kind input: models, prompts, tree, vocabularies that differ;
  ///          kind recipe: run.context beyond the models'
  SequoiaGenerate(cli::Context& cx, const cli::Point<Recipe>& point);

  int print_plan();
  int run();

 private:
  /// Whether rounds are timed before the first text.
  bool measures() const { return chooses_kind() || (chooses() && recipe_.tree.timing.empty()); }
  bool chooses_kind() const { return recipe_.spec.draft == speculate::DraftKind::automatic; }
  /// Whether measured times decide how to speculate, if at all.
  bool chooses() const { return pair_.has_draft() && !chooses_kind() && recipe_.tree.predicts(); }
  bool declines(const speculate::TreePlan& plan) const {
    return !plan.pays() && !recipe_.spec.force;
  }
  /// Loads the models, the draft only if its trees pay as far as times are known, and settles how
  /// to speculate.
  speculate::ModelPair::Engines load(const decode::GenerateSpec& how, speculate::TreePlan& plan);
  int print_fastest_plan();

  cli::Context& cx_;
  const speculate::SequoiaRecipe& asked_;
  speculate::SequoiaRecipe recipe_;  // with all drafts that spec.fastest tries
  Stopwatch load_;
  speculate::ModelPair pair_;
  recipe::Sampling sampling_;  // settled
  decode::PromptSet prompts_;
  int batch_;
  decode::SequenceRoom room_;                    // of the texts
  std::optional<speculate::TokenTree> tree_;     // unless it is chosen when the models are loaded
  std::optional<speculate::TreeRounds> rounds_;  // of tree.replay
  std::vector<TriedWay> ways_;                   // of spec.fastest
};

}  // namespace tandem::tools
