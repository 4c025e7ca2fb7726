#pragma once
#include <cstdint>

#include "model/config.h"
#include "recipe/sections.h"

namespace tandem::model {

/// Tokens of a run's longest sequence: run.context, or all that the model was made for. The tokens
/// decoded beyond them, `n_decoded`, must be within the model's limit too. A `synthetic:` model has
/// no such limit.
/// errors   kind recipe: the model was made for fewer
int context_of(const recipe::Run& run, const ModelConfig& config, int64_t n_decoded = 0);

}  // namespace tandem::model
