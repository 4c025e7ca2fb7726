#pragma once
#include "decode/fit/placement.h"
#include "decode/run_context.h"
#include "train/data/training_data.h"
#include "train/run/train_recipe.h"
#include "train/trainer.h"

namespace tandem::train {

/// Shapes and rates of the trainer that a recipe asks for; train.recompute auto is level 0.
/// run   interrupts the trainer
TrainerSpec trainer_spec(const TrainRecipe& recipe, const model::ModelConfig& config,
                         const TrainingData& data, int64_t n_steps, const decode::Placement& place,
                         const decode::RunContext& run);

}  // namespace tandem::train
