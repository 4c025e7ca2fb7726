#pragma once
#include "ops/linear.h"

namespace tandem::model {

/// Norm weights of one layer, on the device of its matrices.
struct LayerNorms {
  const float* attn = nullptr;  // [dim]
  const float* ffn = nullptr;   // [dim]
  const float* q = nullptr;     // [head_dim], null where the model does not normalise heads
  const float* k = nullptr;     // [head_dim], as q
};

/// Packed weights of one layer. qkv stacks wq, wk, wv; gate_up stacks w_gate and w_up: one product
/// each instead of three and two.
struct LayerWeights {
  ops::PackedWeights qkv;      // [(n_heads + 2 n_kv_heads) head_dim, dim]
  ops::PackedWeights wo;       // [dim, n_heads head_dim]
  ops::PackedWeights gate_up;  // [2 ffn_dim, dim]
  ops::PackedWeights w_down;   // [dim, ffn_dim]
  LayerNorms norms;
};

}  // namespace tandem::model
