#pragma once
#include <filesystem>

#include "model/spec/config.h"

namespace tandem::train {

/// Creates a model folder with the files of the base model's folder that hold no weights:
/// configuration, tokenizer, chat template. config.json is that of the text part, and says whether
/// the head is tied.
/// errors   kind input: cannot create, no space left
void export_files(const std::filesystem::path& folder, const std::filesystem::path& base,
                  const model::ModelConfig& config);

}  // namespace tandem::train
