#pragma once
#include "decode/fit/placement.h"
#include "tools/training/train_recipe.h"
#include "train/data/training_data.h"
#include "train/trainer.h"

namespace tandem::tools {

/// Shapes and rates of the trainer that a recipe asks for; train.recompute auto is level 0.
train::TrainerSpec trainer_spec(const TrainRecipe& recipe, const model::ModelConfig& config,
                                const train::TrainingData& data, int64_t n_steps,
                                const decode::Placement& place);

}  // namespace tandem::tools
