#pragma once
#include <nlohmann/json_fwd.hpp>

#include "speculate/draft/choosing_drafter.h"
#include "speculate/plan/tree_plan.h"

// spec.draft auto: plain steps, a small model alone, the target's second reading alone, or rounds
// within rounds of both.
namespace tandem::speculate {

/// Gives both engines room for any rounds that may be chosen, and for timing them.
void size_for_kinds(ModelPair& pair, const decode::SequenceRoom& room,
                    const GenerateRecipe& recipe);

/// All that is known of the kinds before the first round.
struct KindPlan {
  ChoosingDrafter::Outlook outlook;  // with the best shape of each kind alone
  RoundChoices choices;              // by the acceptance that is assumed

  /// For people, a line a kind.
  std::string text() const;
};

/// Times of the pair's rounds, measured once for this machine, pair and sizes; and the best shapes.
class KindPlanner {
 public:
  /// pair     not loaded yet
  /// context  tokens of the texts
  KindPlanner(const ModelPair& pair, const GenerateRecipe& recipe,
              const decode::SamplerSpec& sampler, int batch, int context);
  /// errors   kind interrupted, memory, numeric; kind input: the acceptance vector, kept times
  KindPlan plan(const decode::RunContext& cx, const ModelPair::Engines& engines) const;

 private:
  RoundTimesSpec timed_;
  KeptTimes outer_, inner_;
  const GenerateRecipe& recipe_;
  int batch_, context_;
};

/// Rounds that choose, and what does.
struct ChoosingRounds {
  std::unique_ptr<Rounds> rounds;
  const ChoosingDrafter* chooser = nullptr;  // lives as long as they
};
ChoosingRounds make_choosing_rounds(const GenerateRecipe& recipe, const KindPlan& plan,
                                    const ModelPair::Engines& engines, RoundOptions options);

/// What kinds promise by the acceptance of late, and how often each was taken.
nlohmann::ordered_json kinds_json(const ChoosingDrafter& chooser);

}  // namespace tandem::speculate
