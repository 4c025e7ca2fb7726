#pragma once
#include "ops/linear.h"

namespace tandem::model {

/// Packed weights of one layer. qkv stacks wq, wk, wv; gate_up stacks w_gate and w_up: one product
/// each instead of three and two.
struct LayerWeights {
  ops::PackedWeights qkv;            // [(n_heads + 2 n_kv_heads) head_dim, dim]
  ops::PackedWeights wo;             // [dim, n_heads head_dim]
  ops::PackedWeights gate_up;        // [2 ffn_dim, dim]
  ops::PackedWeights w_down;         // [dim, ffn_dim]
  const float* attn_norm = nullptr;  // [dim], on the weights' device like all of these
  const float* ffn_norm = nullptr;   // [dim]
};

}  // namespace tandem::model
