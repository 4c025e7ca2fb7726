#pragma once
#include <cstdint>

#include "model/adapters/adapter.h"
#include "model/weights.h"
#include "tools/adapters/progress.h"

namespace tandem::tools {

/// Weights of a merged model that have been compared.
struct MergeCheck {
  int64_t outside = 0;  // those that the adapter does not hold: bytes of the base's
  int64_t inside = 0;   // those that it does: its values, rounded to nearest
  int64_t whole = 0;    // of matrices that it changes as a whole: finite
};

/// Compares every weight of a merged model with its base and the adapter's values.
/// dtype    of its matrices
/// errors   kind numeric: the first that differs, with its place; kind input (the sources),
///          interrupted
MergeCheck check_merged(const model::WeightSource& base, const model::WeightSource& merged,
                        const model::Adapter& adapter, const model::ModelConfig& config,
                        DType dtype, const WeightProgress& progress);

}  // namespace tandem::tools
