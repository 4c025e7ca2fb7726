#pragma once
#include <cstdint>
#include <span>

#include "model/adapters/each_piece.h"
#include "model/adapters/fused_source.h"

namespace tandem::model {

/// Weights of a merged model that have been compared.
struct MergeCheck {
  int64_t outside = 0;  // those that no adapter changes: bytes of the base's
  int64_t inside = 0;   // those that one adapter's slice replaces: its values, rounded to nearest
  int64_t summed = 0;   // those of weighted or overlapping slices: the sum, but for its rounding
  int64_t whole = 0;    // of matrices that factors change: finite, the same when merged again
};

/// Compares every weight of a merged model with its base and the adapters' values.
/// again    fused_source of the same, which the matrices that factors change are compared with
/// dtype    of its matrices
/// errors   kind numeric: the first that differs, with its place; kind input (the sources),
///          interrupted
MergeCheck check_merged(const WeightSource& base, const WeightSource& merged,
                        const WeightSource& again, std::span<const WeightedAdapter> adapters,
                        const ModelConfig& config, DType dtype, const WeightProgress& progress);

}  // namespace tandem::model
