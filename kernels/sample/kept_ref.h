#pragma once
#include <vector>

#include "kernels/sample/sample.h"

namespace tandem {

/// For references: the weight of every token of a row under a rule, that of the best 1 and those of
/// tokens left out 0. Empty for a row without meaning.
/// shapes   row [vocab]; seen: ids to penalise, repeats allowed
std::vector<double> kept_weights_ref(const KeepRule& rule, const float* row, int vocab,
                                     const std::vector<int32_t>& seen);

}  // namespace tandem
