#pragma once

namespace tandem::model {

/// Where a layer writes what it computes of a forward's rows, in the compute type unless said.
/// Inference has one set for all layers; a null place is that set's.
struct LayerActivations {
  void* qkv = nullptr;       // [rows, (n_heads + 2 n_kv_heads) head_dim] before heads are turned
  void* q = nullptr;         // [rows, n_heads, head_dim] turned
  void* attended = nullptr;  // [rows, n_heads, head_dim]
  void* gate_up = nullptr;   // [rows, 2 ffn_dim]
  void* ffn = nullptr;       // [rows, ffn_dim]
  // For a backward pass alone; null: not kept.
  void* residual_in = nullptr;   // [rows, dim] residual stream before attention
  void* residual_mid = nullptr;  // [rows, dim] and before the FFN
  float* lse = nullptr;          // [rows, n_heads] of attention, natural log
  void* normed_in = nullptr;     // [rows, dim] what the norms give of these two
  void* normed_mid = nullptr;    // [rows, dim]
  void* o_out = nullptr;         // [rows, dim] attention's output, and the FFN's, before the norms
  void* down_out = nullptr;      // [rows, dim] that follow them
};

}  // namespace tandem::model
