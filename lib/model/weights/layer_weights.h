#pragma once
#include <array>

#include "model/spec/roles.h"
#include "ops/linear.h"

namespace tandem::model {

/// Norm weights of one layer, on the device of its matrices.
struct LayerNorms {
  const float* attn = nullptr;  // [dim]
  const float* ffn = nullptr;   // [dim]
  const float* q = nullptr;     // [head_dim], null where the model does not normalise heads
  const float* k = nullptr;     // [head_dim], as q
};

/// Packed weights of one layer by role; rest_* are empty where channels are not divided. Of a part
/// that passes through a LayerStream nothing is here.
struct LayerWeights : ByRole<ops::PackedWeights, kPackedRoles> {
  LayerNorms norms = {};
};

}  // namespace tandem::model
