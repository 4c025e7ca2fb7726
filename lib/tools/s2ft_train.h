#pragma once
#include <cstdint>

#include "cli/context.h"
#include "decode/model_files.h"
#include "train/data/training_data.h"
#include "train/run/train_recipe.h"

namespace tandem::tools {

/// A run of s2ft-train: reads the data, then trains, plans, or shows samples.
class S2ftTrain {
 public:
  using Recipe = train::TrainRecipe;

  /// errors   kind input: no such model, or the data as train::load_training_data; kind recipe: a
  ///          sample beyond the model's context
  S2ftTrain(cli::Context& cx, const cli::Point<Recipe>& point);

  int print_plan();
  int run();

 private:
  train::TrainingData load_data() const;
  /// What the user should know of the data before a run.
  void warn() const;
  int show();

  cli::Context& cx_;
  const cli::Point<Recipe>& point_;
  const train::TrainRecipe& recipe_;
  int64_t n_shown_;  // of --show-samples; 0 without it
  decode::ModelFiles files_;
  train::TrainingData data_;
};

}  // namespace tandem::tools
