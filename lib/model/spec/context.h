#pragma once
#include <cstdint>
#include <string>

#include "model/spec/config.h"
#include "recipe/sections.h"

namespace tandem::model {

/// Tokens of a run's longest sequence: run.context, or all that the model was made for. The tokens
/// decoded beyond them, `n_decoded`, must be within the model's limit too. A `synthetic:` model has
/// no such limit.
/// errors   kind recipe: the model was made for fewer
int context_of(const recipe::Run& run, const ModelConfig& config, int64_t n_decoded = 0);

/// How RoPE scaling extends the context that config.json states; empty where it does not.
std::string context_note(const ModelConfig& config);

/// Whether a model that reads so sees no distance beyond those that it was made for, however long a
/// text is: rotations by position tell distances alone.
/// where    section of the cache, which errors name
/// errors   kind recipe: its window is beyond them
bool reads_any_length(const ModelConfig& config, const recipe::Cache& cache,
                      const std::string& where);

}  // namespace tandem::model
