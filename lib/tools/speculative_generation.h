#pragma once
#include "base/clock.h"
#include "tools/proposals.h"
#include "tools/shared_prefix.h"
#include "tools/tree_plan.h"

namespace tandem::tools {

/// A run of sequoia-generate: text of one model, several tokens a step with the help of a small
/// one.
class SpeculativeGeneration {
 public:
  /// Reads headers of both models, prompts and tree, and sizes the run.
  /// errors   kind usage: no prompt; kind input: models, prompts, tree, vocabularies that differ;
  ///          kind recipe: run.context beyond the models'
  SpeculativeGeneration(cli::Context& cx, const cli::Point<SequoiaRecipe>& point);

  /// Plan for --dry-run.
  /// errors   kind memory, after the plan is out: it does not fit
  void print_plan();
  void run();

 private:
  /// Whether rounds are timed before the first text.
  bool measures() const { return chooses() && recipe_.tree.timing.empty(); }
  /// Whether times tell how to speculate, if at all.
  bool chooses() const { return pair_.has_draft() && !recipe_.tree.accept.empty(); }
  bool declines(const TreePlan& plan) const { return !plan.pays() && !recipe_.spec.force; }
  /// Loads the models, the draft only if its trees pay as far as times are known, and settles how
  /// to speculate.
  ModelPair::Engines load(const decode::SamplerSpec& sampler, TreePlan& plan, MemoryPlan& memory);
  /// What all prompts begin with, read by both models.
  SharedPrefix read_prefix(decode::Engine& target, speculate::Rounds* rounds,
                           decode::GenerateReport& report);

  cli::Context& cx_;
  const SequoiaRecipe& recipe_;
  Stopwatch load_;
  ModelPair pair_;
  decode::PromptSet prompts_;
  int batch_;
  TextRoom room_;              // of the texts
  speculate::TokenTree tree_;  // that room is made for
};

}  // namespace tandem::tools
