#pragma once
#include <functional>
#include <string>
#include <vector>

#include "train/selection/selection.h"
#include "train/settings.h"
#include "train/trainer.h"

namespace tandem::train {

/// What scores of units are taken from: a fresh source of the model's weights, and micro-batches.
struct CalibrationData {
  std::function<std::unique_ptr<model::WeightSource>()> source;
  std::function<std::vector<MicroBatch>()> batches;
};

/// The values that a run trains, by section `train`.
/// spec     shapes alone, for scores
/// excluded units of other adapters that are left out, by layer; or empty
/// errors   kind recipe: as select_random, scattered_set; a method, or a part of one, that is not
///          built; as Calibration
TrainedSet choose_set(const TrainSettings& settings, const TrainerSpec& spec, uint64_t seed,
                      const CalibrationData& data, std::vector<LayerUnits> excluded);

/// Lines on matrices that have units to train in some of the layers only; empty without any.
std::string uneven_text(const Selection& selection, const model::ModelConfig& config);

}  // namespace tandem::train
