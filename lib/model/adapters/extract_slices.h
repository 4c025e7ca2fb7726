#pragma once
#include <string>

#include "model/adapters/adapter_features.h"
#include "model/adapters/each_piece.h"

namespace tandem::model {

/// The model that a tuned one is compared with, or is.
struct ComparedModel {
  const ModelConfig& config;
  const WeightSource& source;
  std::string where;  // for messages
};

/// The rows and columns of a tuned model that differ from its base in any bit, of q, k, v and o
/// whole heads, with the tuned model's values.
/// errors   kind interrupted; kind input: other shapes or constants; any other weight differs; all channels of a matrix
///          differ, or more than half of the weights of layers, as by full fine-tuning or in a
///          permuted checkpoint; a value that is not finite; nothing differs
std::vector<OwnedSlice> extract_slices(const ComparedModel& base, const ComparedModel& tuned,
                                       const WeightProgress& progress = {});

}  // namespace tandem::model
