#pragma once
#include <span>

#include "train/settings.h"
#include "train/trained_set.h"

namespace tandem::train {

/// LoRA, or DoRA with `magnitude`: factors next to the matrices that the settings name, in every
/// layer.
/// seed     of the first A, and of dropout
TrainedSet low_rank_set(const model::ModelConfig& config, const LoraSettings& settings,
                        bool magnitude, uint64_t seed);

/// Offsets of a matrix's factors from `end` on, which moves past them.
void lay_out_factors(TrainedMatrix& m, int64_t in, int rank, int64_t& end);

/// What factors are before the first step: A uniform in +-1/sqrt(in), by seed, layer, matrix and
/// element alone; B zero; magnitudes the norms of the rows of W.
/// shapes   values [set.size] where the weights are; workspace as ops::each_rows'
void first_factors(std::span<float> values, const TrainedMatrix& m, const LowRankShape& shape,
                   const ops::PackedWeights& w, std::span<std::byte> workspace, Stream stream = {});

}  // namespace tandem::train
