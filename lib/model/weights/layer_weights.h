#pragma once
#include <array>

#include "model/spec/roles.h"
#include "ops/linear.h"

namespace tandem::model {

/// Norm weights of one layer, on the device of its matrices.
struct LayerNorms {
  const float* attn = nullptr;       // [dim], null where the model does not normalise inputs
  const float* ffn = nullptr;        // [dim], as attn
  const float* q = nullptr;          // [head_dim] or [q_dim], null where q is not normalised
  const float* k = nullptr;          // [head_dim] or [kv_dim], as q
  const float* attn_post = nullptr;  // [dim], null where outputs are not normalised
  const float* ffn_post = nullptr;   // [dim], as attn_post
};

/// Packed weights of one layer by role; rest_* are empty where channels are not divided. Of a part
/// that passes through a LayerStream nothing is here.
struct LayerWeights : ByRole<ops::PackedWeights, kPackedRoles> {
  LayerNorms norms = {};
};

}  // namespace tandem::model
