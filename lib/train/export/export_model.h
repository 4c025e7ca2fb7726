#pragma once
#include <filesystem>
#include <functional>
#include <span>

#include "model/weights/weights.h"
#include "train/trained_set.h"

namespace tandem::train {

/// Creates a model folder with the files of the base model's folder that hold no weights:
/// configuration, tokenizer, chat template. config.json is that of the text part, and says whether
/// the head is tied.
/// errors   kind input: cannot create, no space left
void export_files(const std::filesystem::path& folder, const std::filesystem::path& base,
                  const model::ModelConfig& config);

/// Writes a model folder that any tool reads: weights of `source` with trained values in their
/// places and low-rank factors merged in f32, matrices in `dtype`, rounded to nearest, norms and
/// biases in f32, and the files of the base model's folder that hold no weights as they are. Where
/// the base is in `dtype`, it is the model that was trained, bit for bit. The weights appear whole
/// or not at all; a few MiB of them stand in memory at a time.
/// shapes   values [set.size]
/// progress gets the share of the bytes that are written; false ends the work
/// errors   kind input: cannot create, no space left; kind interrupted
void export_model(const std::filesystem::path& folder, const std::filesystem::path& base,
                  const model::ModelConfig& config, const model::WeightSource& source,
                  const TrainedSet& set, std::span<const float> values, DType dtype,
                  const std::function<bool(double share)>& progress = {});

}  // namespace tandem::train
