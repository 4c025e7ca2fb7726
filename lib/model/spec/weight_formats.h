#pragma once
#include <map>
#include <string>

#include "base/weight_format.h"
#include "model/spec/config.h"
#include "model/spec/roles.h"

namespace tandem::model {

/// The matrices of a checkpoint that are codes in memory; a tied head goes by the embedding.
struct WeightFormats {
  std::map<MatrixId, WeightFormat> coded;
  bool int8_inputs = true, fp8_inputs = false;  // as PackedWeights::Spec's
};

/// The format of a matrix in memory, `numbers` unless it is codes.
WeightFormat stored_as(const ModelConfig& config, MatrixId id, const WeightFormat& numbers);

/// True if a matrix, or one of a stack, is codes in memory.
bool has_codes(const ModelConfig& config, MatrixId id);

/// The formats of coded matrices, the most frequent first: "i4 g64 f16 integer, i8 g64 f16"; if
/// there are none, the type of the others.
std::string formats_text(const ModelConfig& config, DType numbers);

}  // namespace tandem::model
