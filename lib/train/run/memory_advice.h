#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "train/trainer.h"

namespace tandem::train {

/// The smallest change of a run's settings with which it fits into memory: recomputation, then
/// smaller micro-batches, both; with these states in bf16, and shorter samples, which change
/// the result; or that none of these is enough.
/// longest     rows of the longest sample
/// max_tokens  train.max_tokens
/// may_narrow  whether states in bf16 are allowed, and not chosen
/// fits        whether a trainer of these shapes does
std::string memory_advice(const TrainerSpec& spec, int64_t longest, int64_t max_tokens,
                          bool may_narrow, const std::function<bool(const TrainerSpec&)>& fits);

}  // namespace tandem::train
