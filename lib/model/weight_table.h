#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"
#include "model/config.h"

namespace tandem::model {

/// All weights by our names; see kWeights in weight_table.cpp for the checkpoint's.
enum class Weight : uint8_t {
  tok_emb,
  attn_norm,
  wq,
  wk,
  wv,
  wo,
  bq,
  bk,
  bv,
  bo,
  ffn_norm,
  w_gate,
  w_up,
  w_down,
  b_gate,
  b_up,
  b_down,
  out_norm,
  lm_head,
  q_norm,  // last, since the numbers of a synthetic weight follow from its place here
  k_norm,
};

bool is_per_layer(Weight weight);

/// Name in a Hugging Face checkpoint: (wq, 3) -> "model.layers.3.self_attn.q_proj.weight". `layer`
/// is ignored for weights outside the layers.
std::string checkpoint_name(Weight weight, int layer = 0);

/// Row-major, output features first: wq [Hq*d, D], w_down [D, F], tok_emb and lm_head [V, D], norms
/// and biases one-dimensional: q_norm and k_norm [d], one for all heads.
io::Shape weight_shape(Weight weight, const ModelConfig& config);

/// Whether a model of this configuration has the weight: biases and norms of heads by
/// flag, lm_head unless tied.
bool has_weight(Weight weight, const ModelConfig& config);

/// The weights of the model outside its layers, and those of each layer, in table order.
std::vector<Weight> global_weights(const ModelConfig& config);
std::vector<Weight> layer_weights(const ModelConfig& config);

/// Number of parameters, a tied head counted once.
int64_t n_params(const ModelConfig& config);

}  // namespace tandem::model
