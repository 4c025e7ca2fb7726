#pragma once
#include <filesystem>

#include "decode/model_files.h"
#include "train/settings.h"
#include "train/trainer.h"

namespace tandem::train {

/// Writes the trained slices of a run of method s2ft as an adapter to its base model, in f32
/// (model/adapters/adapter.h); of other methods nothing.
/// seed     of the selection
/// errors   kind input: cannot create, no space left
void export_adapter(const std::filesystem::path& folder, const decode::ModelFiles& base,
                    const TrainSettings& settings, int64_t seed, Trainer& trainer);

}  // namespace tandem::train
