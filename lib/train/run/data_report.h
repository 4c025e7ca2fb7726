#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "train/data/epoch.h"
#include "train/data/training_data.h"
#include "train/run/train_recipe.h"

namespace tandem::train {

/// What a run reads, counted: samples, tokens, padding, steps.
struct DataReport {
  DatasetCounts counts, val_counts;  // val_counts: of data.val_path, else empty
  int64_t longest = 0;               // tokens that the longest sample's forward reads
  int64_t n_train = 0, n_val = 0;    // samples
  EpochCounts epoch;                 // the first
  BatchSettings batches;
  int64_t steps = 0;  // of the run

  DataReport(const TrainRecipe& recipe, const TrainingData& data);

  /// Real tokens over those that micro-batches of train.micro_tokens have room for.
  double fill() const;
  double padding() const;  // share of all rows

  /// Lines of a plan.
  std::string text(const std::string& path) const;
  nlohmann::ordered_json json() const;
};

}  // namespace tandem::train
