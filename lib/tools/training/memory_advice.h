#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "train/trainer.h"

namespace tandem::tools {

/// The smallest change of a run's settings with which it fits into memory: recomputation, then
/// smaller micro-batches, both, shorter samples; or that none of these is enough.
/// longest     rows of the longest sample
/// max_tokens  train.max_tokens
/// fits        whether a trainer of these shapes does
std::string memory_advice(const train::TrainerSpec& spec, int64_t longest, int64_t max_tokens,
                          const std::function<bool(const train::TrainerSpec&)>& fits);

}  // namespace tandem::tools
