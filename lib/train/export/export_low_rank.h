#pragma once
#include <filesystem>
#include <span>
#include <vector>

#include "model/adapters/low_rank_merge.h"
#include "train/settings.h"
#include "train/trained_set.h"

namespace tandem::train {

/// The factors of a set, each with its matrix.
/// shapes   values [set.size], which must outlive the result
std::vector<model::LowRankDelta> low_rank_deltas(const TrainedSet& set,
                                                 const model::ModelConfig& config,
                                                 std::span<const float> values);

/// Writes the factors of a run of method lora or dora as an adapter of PEFT, in f32
/// (model/adapters/low_rank_adapter.h).
/// base     the base model, as it was named
/// errors   kind input: cannot create, no space left
void export_low_rank(const std::filesystem::path& folder, const std::string& base,
                     const TrainSettings& settings, const TrainedSet& set,
                     const model::ModelConfig& config, std::span<const float> values);

}  // namespace tandem::train
