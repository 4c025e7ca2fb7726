#pragma once
#include <cstdint>
#include <functional>
#include <string>

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

/// The smallest change of a run's settings with which it fits into memory: recomputation, then
/// smaller micro-batches, both; with these states in bf16, and shorter samples, which change
/// the result; or that none of these is enough.
/// longest     rows of the longest sample
/// max_tokens  train.max_tokens
/// may_narrow  whether states in bf16 are allowed, and not chosen
/// fits        whether a trainer of these shapes does
std::string memory_advice(const TrainerSpec& spec, int64_t longest, int64_t max_tokens,
                          bool may_narrow, const std::function<bool(const TrainerSpec&)>& fits);

}  // namespace tandem::train
